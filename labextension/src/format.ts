/** Amounts as people read them, and figures of the status document in words. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { isNumber } from './reading';

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

/** Return an amount and its whole as short as they can be: `3.5` and `11.8 GiB`; the unit is said once if it is one. */
export function fraction(part: string, whole: string): [string, string] {
  const [number = '', unit] = part.split(' ');
  return [unit === whole.split(' ')[1] ? number : part, whole];
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

/** A figure of an entry of the status document; see `sharedkernel/status/figures.py`. */
export interface IFigure<T> {
  place: Place;
  unit: 'bytes' | 'seconds' | 'about' | 'number' | 'count' | 'percent';
  /** Those that it is the sum of. */
  fields: ReadonlyArray<keyof T>;
  /** What it is a part of, which is said where it is known. */
  whole: keyof T | null;
  words: (amount: string, trans: TranslationBundle) => string;
}

/** The line about an entry, the amount beside its name, and what that is made of. */
type Place = 'line' | 'beside' | 'details';

/** Return the number of an entry; null: it is not known. */
export function valueOf<T>(figure: IFigure<T>, entry: T): number | null {
  const known = figure.fields.map((field): unknown => entry[field]).filter(isNumber);
  return known.length === 0 ? null : known.reduce((sum, amount) => sum + amount, 0);
}

/** Return what is said in a place of an entry, as far as it is known. */
export function sentences<T>(
  figures: Record<string, IFigure<T>>,
  place: Place,
  entry: T,
  units: Units,
  trans: TranslationBundle
): string[] {
  const said: string[] = [];
  for (const figure of Object.values(figures).filter(one => one.place === place)) {
    const value = valueOf(figure, entry);
    const whole: unknown = figure.whole === null ? null : entry[figure.whole];
    if (value !== null) {
      const amount = format(value, figure.unit, units, trans);
      said.push(
        figure.words(
          isNumber(whole) ? trans.__('%1 of %2', amount, format(whole, figure.unit, units, trans)) : amount,
          trans
        )
      );
    }
  }
  return said;
}

function format(value: number, unit: IFigure<unknown>['unit'], units: Units, trans: TranslationBundle): string {
  switch (unit) {
    case 'bytes':
      return formatBytes(value, units);
    case 'percent':
      return trans.__('%1 %', Math.round(100 * value));
    case 'number':
      return String(value);
    case 'count':
      return String(Math.round(value));
    default:
      return formatSeconds(value, trans);
  }
}

/** Return a duration as short text, as exact as a prediction is. */
function formatSeconds(seconds: number, trans: TranslationBundle): string {
  if (Math.round(seconds) < 100) {
    return trans.__('%1 s', Math.round(seconds));
  }
  return Math.round(seconds / 60) < 100
    ? trans.__('%1 min', Math.round(seconds / 60))
    : trans.__('%1 h', Math.round(seconds / 3600));
}
