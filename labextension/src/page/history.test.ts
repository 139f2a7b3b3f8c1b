import { describe, expect, it } from 'vitest';

import { readHistory } from './history';

describe('readHistory', () => {
  it('reads each device', () => {
    const device = { name: 'cuda:0', capacity_bytes: 100, used_bytes: [null, 10, 20], utilisation: [null, 50, 60] };
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
