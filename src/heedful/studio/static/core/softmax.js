// The softmax of a row of scores; null is masked and gets no weight.
export function softmax(scores) {
  const largest = Math.max(...scores.filter((score) => score !== null)), powers = scores.map((score) => (score === null ? 0 : Math.exp(score - largest))), total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => (total ? power / total : 0));
}
