// Numbers as text: three significant digits, true minus signs, no false zeros.
export function number(value, digits = 3) {
  if (value == null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001) return value < 0 ? ">−0.001" : "<0.001";
  const text = size >= 1000 ? Math.round(size).toLocaleString("en") : Number(size.toPrecision(digits)).toString();
  return value < 0 ? `−${text}` : text;
}

export const signed = (value, digits = 2) => (value > 0 ? `+${number(value, digits)}` : number(value, digits));

export function percent(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (value === 0) return "0%";
  if (value > 0 && value < 0.001) return "<0.1%";
  if (value > 0.999 && value < 1) return ">99.9%";
  return `${(100 * value).toFixed(value < 0.1 || value >= 0.99 && value < 1 ? 1 : 0)}%`;
}

export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)}B`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  return Math.round(value).toLocaleString("en");
}

// A size to choose by: 183k, 1.5M.
export const rough = (value) => (value >= 1000 && value < 1e6 ? `${Math.round(value / 1000)}k` : count(value));

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${String(whole % 60).padStart(2, "0")}s`;
  return `${Math.floor(whole / 3600)}h${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}m`;
}

export const plural = (amount, noun) => `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
