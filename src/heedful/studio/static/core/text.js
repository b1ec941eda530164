// Texts cut by characters as the server counts them: by code points, where JavaScript counts an emoji twice.
export const cut = (text, start, end) => Array.from(text).slice(start, end).join("");
export const size = (text) => Array.from(text).length;

// The width of a text in letters; emoji and letters of Chinese, Japanese and Korean count as 1.8.
export const breadth = (text) => Array.from(text).reduce((sum, letter) => sum + (/[\u1100-\u11ff\u2e80-\uffdc]|\p{Extended_Pictographic}/u.test(letter) ? 1.8 : 1), 0);

const WITHOUT_SPACES = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]/u;

// The starts of words in a text whose script has no spaces between them, by the browser's dictionary; else none.
export function wordStarts(text) {
  if (!WITHOUT_SPACES.test(text) || !Intl.Segmenter) return new Set();
  let at = 0;
  return new Set(Array.from(new Intl.Segmenter(undefined, { granularity: "word" }).segment(text), ({ segment }) => (at += size(segment)) - size(segment)));
}

const RIGHT_TO_LEFT = /[\u0590-\u08FF\uFB1D-\uFDFD\uFE70-\uFEFC]|\uD802[\uDC00-\uDFFF]|\uD83A[\uDD00-\uDD5F]/;

// The direction of a row of words: that of the first one with a letter. (dir="auto" does not look into isolated words.)
export const directionOf = (groups) => (RIGHT_TO_LEFT.test(groups.find((group) => !group.special && /\p{L}/u.test(group.label))?.label ?? "") ? "rtl" : "ltr");
