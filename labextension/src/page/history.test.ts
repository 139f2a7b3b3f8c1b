import { describe, expect, it } from 'vitest';

import { readHistory, withGaps } from './history';

describe('readHistory', () => {
  it('reads each device', () => {
    const device = { name: 'cuda:0', capacity_bytes: 100, used_bytes: [null, 10, 20], utilisation: [null, 0.5, 0.6] };
    expect(readHistory({ step_seconds: 10, devices: [device] }, 1000)).toEqual([
      {
        device: 'cuda:0',
        capacityBytes: 100,
        times: [980, 990, 1000],
        usedBytes: [null, 10, 20],
        utilisation: [null, 50, 60]
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
  const short = { device: 'cuda:0', capacityBytes: 100, times: [3580, 3590], usedBytes: [1, 2], utilisation: [3, 4] };

  it('covers the whole hour', () => {
    const hour = withGaps(short);
    expect(hour.times).toHaveLength(360);
    expect([hour.times[0], hour.times[357], hour.times[359]]).toEqual([0, 3570, 3590]);
    expect(hour.usedBytes.slice(357)).toEqual([null, 1, 2]);
    expect(hour.utilisation.slice(357)).toEqual([null, 3, 4]);
  });

  it('adds nothing to a whole hour', () => {
    expect(withGaps(withGaps(short))).toEqual(withGaps(short));
  });
});
