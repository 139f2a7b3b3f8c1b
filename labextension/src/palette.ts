/**
 * The colours of users, the same on every page that shows the same users.
 *
 * Each has a contrast of at least 3 to 1 against white and against the dark theme's background. The first ones differ
 * the most: few users take only those. A colour is never the only label of a user.
 */

export const COLOURS: readonly string[] = [
  '#4a75b4',
  '#e96326',
  '#4da424',
  '#b0378b',
  '#7f652e',
  '#ae6fe8',
  '#a78894',
  '#0fa196',
  '#227727',
  '#a69239',
  '#b24745',
  '#e5598e',
  '#6887ff',
  '#147174',
  '#805983',
  '#7751cb',
  '#728771',
  '#7992c4',
  '#b26d3b',
  '#b26385',
  '#8a70b8',
  '#315fcf',
  '#728431',
  '#c170bb',
  '#9e49b7',
  '#8b6c69',
  '#1a95d8',
  '#cd7671',
  '#438ba2',
  '#108968',
  '#607086',
  '#579f68',
  '#cc3e6a',
  '#665da4',
  '#566955',
  '#de4e4e',
  '#846eea',
  '#058d1d',
  '#cb7e19',
  '#9b4b66',
  '#9b532a',
  '#cb51a4',
  '#317de9',
  '#5c6c14',
  '#9c9277',
  '#867a94',
  '#937e45',
  '#9e86b9',
  '#829821',
  '#6b76d2'
];

/** With at most so many users, colours come from so many of the first ones. */
const STEPS: readonly number[] = [6, 12, 25, COLOURS.length];

/**
 * Return the colour of each user.
 *
 * It depends on the set of names only, not on who looks or on their order. A name mostly keeps its colour when others
 * come and go. More than 50 users share colours.
 */
export function userColours(names: Iterable<string>): Map<string, string> {
  const sorted = [...new Set(names)].sort();
  const size = STEPS.find(step => step >= sorted.length) ?? COLOURS.length;
  const colours = new Map<string, string>();
  const taken = new Set<number>();
  for (const name of sorted) {
    if (taken.size === size) {
      taken.clear();
    }
    let place = hash(name) % size;
    while (taken.has(place)) {
      place = (place + 1) % size;
    }
    taken.add(place);
    colours.set(name, COLOURS[place] ?? '');
  }
  return colours;
}

/** Return a number that depends on the text alone (FNV-1a, 32 bits). */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) {
    value = Math.imul(value ^ byte, 0x01000193) >>> 0;
  }
  return value;
}
