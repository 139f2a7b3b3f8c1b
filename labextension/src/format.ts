/** Amounts as people read them. */

export type Units = 'binary' | 'decimal';

const NAMES: Record<Units, readonly string[]> = {
  binary: ['B', 'KiB', 'MiB', 'GiB', 'TiB'],
  decimal: ['B', 'kB', 'MB', 'GB', 'TB']
};

/** Return bytes as short text, such as `1.5 GiB`. */
export function formatBytes(bytes: number, units: Units): string {
  const step = units === 'binary' ? 1024 : 1000;
  const names = NAMES[units];
  let power = 0;
  let value = bytes;
  // What rounds to a whole step is shown in the next unit: 1023.9 KiB as 1.0 MiB.
  while (power < names.length - 1 && Math.round(value) >= step) {
    value /= step;
    power += 1;
  }
  const digits = power === 0 || value >= 99.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${names[power]}`;
}

/** Return when something was, such as `13:45:34`; with the day, if that is not today. */
export function momentOf(moment: Date): string {
  const time = moment.toTimeString().slice(0, 8);
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString()} ${time}`;
}

/** Return a share of a whole as a percentage from 0 to 100; of no whole it is 0. */
export function percent(part: number, whole: number): number {
  return whole > 0 ? Math.min(100, Math.max(0, (100 * part) / whole)) : 0;
}
