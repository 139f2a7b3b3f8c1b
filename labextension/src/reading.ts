/**
 * Checks of what arrives: a reader returns a value of its type, or throws a `ViewError`.
 *
 * Fields that are not known are ignored, so that a newer gateway does no harm.
 */

/** What arrived cannot be shown. */
export class ViewError extends Error {}

export type Reader<T> = (value: unknown, name: string) => T;

/** What a reader returns. */
export type Read<R> = R extends Reader<infer T> ? T : never;

type Is<T> = (value: unknown) => value is T;

export const isText: Is<string> = value => typeof value === 'string';
export const isFlag: Is<boolean> = value => typeof value === 'boolean';
export const isNumber: Is<number> = (value): value is number => typeof value === 'number' && Number.isFinite(value);
export const isObject: Is<Record<string, unknown>> = (value): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
/** Sizes, counts and durations. */
export const isAmount: Is<number> = (value): value is number => isNumber(value) && value >= 0;

/** Return a reader of what has to be there. */
export function need<T>(is: Is<T>): Reader<T> {
  return (value, name) => {
    if (!is(value)) {
      throw new ViewError(`${name} is ${String(value)}`);
    }
    return value;
  };
}

/** Return a reader of what may be missing, as from an older gateway, or odd: then it is `fallback`. */
export function or<T, F>(is: Is<T>, fallback: F): Reader<T | F> {
  return value => (is(value) ? value : fallback);
}

/** Return a reader of what may be missing, then it is null. */
export function maybe<T>(read: Reader<T>): Reader<T | null> {
  return (value, name) => (value === undefined || value === null ? null : read(value, name));
}

/** Return a reader of a list; a missing one is empty. */
export function list<T>(read: Reader<T>): Reader<T[]> {
  return (value, name) => {
    if (!Array.isArray(value ?? [])) {
      throw new ViewError(`${name} is no list`);
    }
    return ((value ?? []) as unknown[]).map(entry => read(entry, `an entry of ${name}`));
  };
}

/** Return a reader of an object with these fields. */
export function record<F extends Record<string, Reader<unknown>>>(fields: F): Reader<{ [K in keyof F]: Read<F[K]> }> {
  const readers = Object.entries(fields);
  return (value, name) => {
    const found = need(isObject)(value, name);
    const read = readers.map(([field, reader]) => [field, reader(found[field], `${name}.${field}`)]);
    return Object.fromEntries(read) as { [K in keyof F]: Read<F[K]> };
  };
}
