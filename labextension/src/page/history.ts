/** The last hour of each device, as the gateway keeps it. */

export interface IHistory {
  device: string;
  capacityBytes: number;
  /** Unix times in seconds, oldest first. */
  times: number[];
  /** One value for each time, as all below; null: nobody knows. */
  usedBytes: Array<number | null>;
  /** In percent. */
  utilisation: Array<number | null>;
}

/** Seconds that a chart shows. */
const SHOWN_SECONDS = 3600;

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
    utilisation: [...gaps, ...history.utilisation]
  };
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
        utilisation: usedBytes.map((_, index) => inPercent(utilisation[index]))
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
