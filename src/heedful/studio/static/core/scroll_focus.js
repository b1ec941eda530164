// Elements that scroll sideways can take the keyboard focus while they do, so that arrow keys scroll them.
function update() {
  for (const place of document.querySelectorAll(".scroll")) {
    const scrolls = place.scrollWidth > place.clientWidth + 1;
    if (scrolls !== place.hasAttribute("tabindex")) scrolls ? place.setAttribute("tabindex", "0") : place.removeAttribute("tabindex");
  }
}

let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; update(); });
}

export function followScrolling(page) {
  new MutationObserver(soon).observe(page, { childList: true, subtree: true, characterData: true });
  new ResizeObserver(soon).observe(page);
}
