// Arrow keys move the focus among the buttons of a group, of which Tab reaches one. `across`: buttons in a line of the group.
export function rove(event, across = 1) {
  const right = getComputedStyle(event.target).direction === "rtl" ? -1 : 1;
  const step = { ArrowRight: right, ArrowLeft: -right, ArrowDown: across, ArrowUp: -across }[event.key];
  if (!step || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
  const buttons = [...event.currentTarget.querySelectorAll("button")], next = buttons[buttons.indexOf(event.target) + step];
  event.preventDefault();
  event.stopPropagation();
  next?.focus();
}
