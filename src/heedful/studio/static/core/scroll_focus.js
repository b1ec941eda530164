// Places that scroll sideways take the keyboard's focus while they do, so that arrow keys can move them.
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
