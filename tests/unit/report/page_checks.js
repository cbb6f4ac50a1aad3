// What is wrong with the page that is shown, as texts; none when nothing is.

function shown(element) {
  return element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true });
}

function named(element) {
  return `${element.tagName} ${element.className.baseVal ?? element.className}: ` +
    element.textContent.trim().slice(0, 60);
}

function scrollers(element) {
  for (let e = element.parentElement; e; e = e.parentElement) {
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)) return true;
  }
  return false;
}

// Elements that reach past the screen, unless they lie in something that scrolls.
function tooWide() {
  const found = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) {
    found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  }
  for (const element of document.body.querySelectorAll("*")) {
    if (element.classList.contains("skip") || !shown(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > width + 1 || box.left < -1) && !scrollers(element)) {
      found.push(named(element));
    }
  }
  return found.slice(0, 10);
}

function rgb(text) {
  const parts = text.match(/[\d.]+/g);
  return parts ? parts.map(Number) : [0, 0, 0, 0];
}

// https://www.w3.org/TR/WCAG22/#dfn-relative-luminance
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

function behind(element) {
  if (element.tagName === "text" && element.classList.contains("inside")) {
    return getComputedStyle(element.previousElementSibling).fill;
  }
  const style = getComputedStyle(element);
  if (element.tagName === "text" && style.stroke !== "none") return style.stroke; // its halo
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (rgb(colour)[3] !== 0) return colour;
  }
  return "rgb(255, 255, 255)";
}

// Texts whose contrast with what lies behind them is less than `least`.
function tooFaint(least) {
  const found = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || ["TITLE", "DESC", "title", "desc", "SCRIPT"]
      .includes(element.tagName) || !shown(element)) continue;
    const style = getComputedStyle(element);
    const ink = luminance(rgb(element.tagName === "text" ? style.fill : style.color));
    const paper = luminance(rgb(behind(element)));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < least) found.add(`${contrast.toFixed(2)} ${named(element)}`);
  }
  return [...found].slice(0, 10);
}

// What is folded away although paper can't unfold it.
function folded() {
  const inside = document.querySelectorAll("details > :not(summary)");
  return [...inside].filter((e) => !shown(e) || !e.getBoundingClientRect().height).map(named);
}

// What reaches past the sheet's edge or is wider than its box: paper does not scroll.
function cutOff() {
  const width = document.documentElement.clientWidth;
  const wide = [...document.body.querySelectorAll("*")].filter(
    (e) => shown(e) && (e.getBoundingClientRect().right > width + 1 ||
      (e instanceof HTMLElement && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)));
  return wide.slice(0, 10).map(named);
}

// Of the focused element its class, whether it can be seen, and whether that it has the focus.
function focused() {
  const element = document.activeElement;
  if (element === document.body) return [];
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  return [element.className, box.left >= 0 && box.width > 0 ? "visible" : "hidden",
    style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 ? "outlined" : "plain"];
}

// What scrolls sideways and can't be reached by keyboard.
function unreachable() {
  return [...document.querySelectorAll("body *")].filter(
    (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0).map(named);
}
