import { describe, expect, it } from 'vitest';

import { english } from '../testdocuments';
import { gapWords, layersOf, readHistory, withGaps } from './history';

describe('readHistory', () => {
  it('reads each device', () => {
    const device = { name: 'cuda:0', capacity_bytes: 100, used_bytes: [null, 10, 20], utilisation: [null, 0.5, 0.6] };
    const users = { ada: [null, 4, 5], grace: [0] };
    expect(readHistory({ step_seconds: 10, devices: [{ ...device, users }] }, 1000)).toEqual([
      {
        device: 'cuda:0',
        capacityBytes: 100,
        times: [980, 990, 1000],
        usedBytes: [null, 10, 20],
        utilisation: [null, 50, 60],
        users: [
          { name: 'ada', bytes: [0, 4, 5] },
          { name: 'grace', bytes: [0, 0, 0] }
        ]
      }
    ]);
  });

  it('has none where there is nothing to draw', () => {
    expect(readHistory(null, 0)).toEqual([]);
    expect(readHistory({ devices: 3 }, 0)).toEqual([]);
    expect(readHistory({ devices: [{ name: 'host', used_bytes: [null, 'x'] }] }, 0)).toEqual([]);
  });
});

describe('withGaps', () => {
  const short = {
    ...{ device: 'cuda:0', capacityBytes: 100, times: [3580, 3590], usedBytes: [1, 2], utilisation: [3, 4] },
    users: [{ name: 'ada', bytes: [1, 1] }]
  };

  it('covers the whole hour', () => {
    const hour = withGaps(short);
    expect(hour.times).toHaveLength(360);
    expect([hour.times[0], hour.times[357], hour.times[359]]).toEqual([0, 3570, 3590]);
    expect(hour.usedBytes.slice(357)).toEqual([null, 1, 2]);
    expect(hour.utilisation.slice(357)).toEqual([null, 3, 4]);
    expect(hour.users[0]?.bytes.slice(357)).toEqual([0, 1, 1]);
  });
});

describe('a stacked chart', () => {
  const user = (name: string, ...bytes: number[]) => ({ name, bytes });
  const hour = {
    ...{ device: 'cuda:0', capacityBytes: 100, times: [0, 60, 120], utilisation: [null, null, null] },
    ...{ usedBytes: [10, null, 9], users: [user('ada', 6, 0, 5), user('grace', 3, 0, 4)] }
  };

  it('has the others at the bottom of the drawing order, and each user above the ones before', () => {
    expect(layersOf(hour)).toEqual([
      { user: null, bytes: [1, null, 0], top: [10, null, 9] },
      { user: 'grace', bytes: [3, null, 4], top: [9, null, 9] },
      { user: 'ada', bytes: [6, null, 5], top: [6, null, 5] }
    ]);
  });

  it('explains its gaps', () => {
    const at = (...usedBytes: Array<number | null>) =>
      gapWords({ ...hour, usedBytes, times: usedBytes.map((_, place) => 1800 * place) }, english);
    const clock = (place: number) => new Date(1800_000 * place).toTimeString().slice(0, 5);
    expect(at(1, 2, 3)).toBe(null);
    expect(at(1, null, 3)).toBe(`Executor away from ${clock(1)} to ${clock(2)}`);
    expect(at(null, 2, null)).toBe(`Recorded since ${clock(1)} · executor away since ${clock(2)}`);
  });
});
