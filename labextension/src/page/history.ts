/** The last hour of each device, as the gateway keeps it. */

import type { TranslationBundle } from '@jupyterlab/translation';

export interface IHistory {
  device: string;
  capacityBytes: number;
  /** Unix times in seconds, oldest first. */
  times: number[];
  /** One value for each time, as all below; null: nobody knows. */
  usedBytes: Array<number | null>;
  /** In percent. */
  utilisation: Array<number | null>;
  /** What each of those with the most memory had in use, the largest first. */
  users: IUserHistory[];
}

export interface IUserHistory {
  name: string;
  bytes: number[];
}

/** A part of a stacked chart, drawn from zero to its top; later ones are drawn over earlier ones. */
export interface ILayer {
  /** Null: all who are not told apart. */
  user: string | null;
  bytes: Array<number | null>;
  top: Array<number | null>;
}

/** Seconds that a chart shows. */
const SHOWN_SECONDS = 3600;
/** The most gaps that are explained; of more, only the last are. */
const FEW = 3;

/** Return *history* with gaps before it, so that it covers the whole hour. */
export function withGaps(history: IHistory): IHistory {
  const [first, second] = history.times;
  if (first === undefined) {
    return history;
  }
  const step = second === undefined ? 10 : second - first;
  const missing = Math.max(0, Math.round(SHOWN_SECONDS / step) - history.times.length);
  const gaps = Array<null>(missing).fill(null);
  return {
    ...history,
    times: [...gaps.map((_, index) => first - (missing - index) * step), ...history.times],
    usedBytes: [...gaps, ...history.usedBytes],
    utilisation: [...gaps, ...history.utilisation],
    users: history.users.map(user => ({ ...user, bytes: [...gaps.map(() => 0), ...user.bytes] }))
  };
}

/** Return the layers of a chart stacked by user, the highest first. */
export function layersOf(history: IHistory): ILayer[] {
  const { usedBytes, users } = history;
  const sums = usedBytes.map(() => 0);
  const layers = users.map(({ name, bytes }): ILayer => {
    const top = usedBytes.map((used, index) => {
      const sum = (sums[index] ?? 0) + (bytes[index] ?? 0);
      sums[index] = sum;
      return used === null ? null : sum;
    });
    return { user: name, bytes: usedBytes.map((used, index) => (used === null ? null : (bytes[index] ?? 0))), top };
  });
  const rest = usedBytes.map((used, index) => (used === null ? null : Math.max(0, used - (sums[index] ?? 0))));
  return [{ user: null, bytes: rest, top: usedBytes }, ...layers.reverse()];
}

/** Return when nothing was recorded, in words; null where there is no gap. */
export function gapWords(history: IHistory, trans: TranslationBundle): string | null {
  const { times, usedBytes } = withGaps(history);
  const clock = (index: number) => new Date((times[index] ?? 0) * 1000).toTimeString().slice(0, 5);
  const words: string[] = [];
  for (let begin = 0; begin < usedBytes.length; begin += 1) {
    if (usedBytes[begin] !== null) {
      continue;
    }
    let end = begin;
    while (end < usedBytes.length && usedBytes[end] === null) {
      end += 1;
    }
    if (begin === 0) {
      words.push(trans.__('recorded since %1', clock(end)));
    } else if (end === usedBytes.length) {
      words.push(trans.__('executor away since %1', clock(begin)));
    } else {
      words.push(trans.__('executor away from %1 to %2', clock(begin), clock(end)));
    }
    begin = end;
  }
  const told = words.slice(-FEW).join(' · ');
  return told === '' ? null : told.charAt(0).toUpperCase() + told.slice(1);
}

/** Return the histories in an answer of the gateway: those that can be drawn. */
export function readHistory(answer: unknown, now: number): IHistory[] {
  const root = object(answer);
  const step = number(root.step_seconds) ?? 10;
  const end = number(root.end) ?? now;
  const devices = Array.isArray(root.devices) ? root.devices.map(object) : [];
  return devices
    .map(device => {
      const usedBytes = numbers(device.used_bytes);
      const count = usedBytes.length;
      const utilisation = numbers(device.utilisation);
      return {
        device: typeof device.name === 'string' ? device.name : '',
        capacityBytes: number(device.capacity_bytes) ?? 0,
        times: usedBytes.map((_, index) => end - (count - 1 - index) * step),
        usedBytes,
        utilisation: usedBytes.map((_, index) => inPercent(utilisation[index])),
        users: Object.entries(object(device.users)).map(([name, bytes]) => {
          const known = numbers(bytes);
          return { name, bytes: usedBytes.map((_, index) => known[index] ?? 0) };
        })
      };
    })
    .filter(history => history.usedBytes.some(value => value !== null));
}

function inPercent(part: number | null | undefined): number | null {
  return typeof part === 'number' ? 100 * part : null;
}

function object(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function number(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function numbers(value: unknown): Array<number | null> {
  return Array.isArray(value) ? value.map(number) : [];
}
