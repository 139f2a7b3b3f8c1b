import { describe, expect, it } from 'vitest';

import { english } from './testdocuments';
import {
  asDrawn,
  clock,
  duration,
  IRow,
  kindsIn,
  move,
  readTimelines,
  rowName,
  rowWords,
  secondsByKind,
  select,
  ticks,
  zoom
} from './timeline';

const BEGIN = 1_000_000;

function row(user: string, ...segments: unknown[]): Record<string, unknown> {
  return { session: `session of ${user}`, user, notebook: `/home/${user}/work.ipynb`, segments };
}

function rows(...entries: unknown[]): IRow[] {
  const device = { device: null, begin: BEGIN, end: BEGIN + 100, oldest: 0, rows: entries, more_rows: 2 };
  return readTimelines({ devices: [device] })[0]?.rows ?? [];
}

function words(all: IRow[], index = 0): string[] {
  const one = all[index]!;
  return rowWords(one, one.segments, all, 'ada', 'binary', english);
}

describe('readTimelines', () => {
  it('reads rows, with times of the clock', () => {
    expect(rows(row('ada', [1, 2.5, { running: 1.5 }, null]))).toEqual([
      {
        session: 'session of ada',
        user: 'ada',
        notebook: '/home/ada/work.ipynb',
        segments: [{ begin: BEGIN + 1, end: BEGIN + 2.5, seconds: { running: 1.5 }, neededBytes: null }]
      }
    ]);
  });

  it('leaves out what cannot be read', () => {
    for (const nothing of [null, 3, {}, { devices: 'x' }]) {
      expect(readTimelines(nothing)).toEqual([]);
    }
    expect(rows({ segments: [3, null, [1]] }, 'x')).toMatchObject([
      { user: '', notebook: null, segments: [{ begin: BEGIN + 1, seconds: {} }] },
      { segments: [] }
    ]);
  });
});

describe('rowWords', () => {
  it('says what was done, and who ran while one waited', () => {
    const all = rows(
      row('ada', [0, 10, { queued: 10 }], [10, 14, { running: 2, queued: 2 }]),
      row('grace', [2, 6, { running: 4 }], [11, 13, { running: 1 }]),
      row('linus', [6, 7, { running: 1 }]),
      row('mary', [50, 60, { running: 10 }])
    );
    expect(words(all)).toEqual([
      'Ran for 2.0 s',
      'Waited 12 s for its turn, while grace (work.ipynb) and linus (work.ipynb) ran'
    ]);
    expect(words(all, 3)).toEqual(['Ran for 10 s']);
  });

  it('says how much memory was waited for', () => {
    const wait = [0, 75, { waiting: 75 }, 3 << 28];
    expect(words(rows(row('ada', wait)))).toEqual(['Waited 1 min 15 s for 768 MiB of memory']);
    const restore = [0, 8, { awaiting_restore: 4, restoring: 1, offloaded: 3 }, null];
    expect(words(rows(row('ada', restore)))).toEqual([
      'Waited 4.0 s for memory',
      'Moved its memory for 1.0 s',
      'Was offloaded for 3.0 s'
    ]);
    expect(words(rows(row('ada')))).toEqual(['Did nothing on the device']);
  });
});

it('rowName hides nothing, and names no notebook that is not told', () => {
  const [mine, other] = rows(row('ada'), { ...row('gr\u202eace'), notebook: null });
  expect(rowName(mine!, 'ada', english)).toBe('you (work.ipynb)');
  expect(rowName(other!, 'ada', english)).toBe('gr\\u{202e}ace');
});

it('secondsByKind puts activities of a newer gateway nowhere', () => {
  const [one] = rows(row('ada', [0, 9, { running: 1, queued: 2, dancing: 3 }]));
  expect(secondsByKind(one!.segments)).toEqual({ running: 1, moving: 0, memory: 0, turn: 2, offloaded: 0 });
});

describe('windows', () => {
  const now = BEGIN + 100;
  const shown = { device: null, begin: BEGIN, end: now, rows: [], moreRows: 0 };

  it('are selected in either direction, and never shorter than a second', () => {
    const expected = { seconds: 20, end: BEGIN + 40 };
    expect(select(shown, 0.2, 0.4)).toEqual(expected);
    expect(select(shown, 0.4, 0.2)).toEqual(expected);
    expect(select(shown, 0.5, 0.501)).toEqual({ seconds: 1, end: BEGIN + 50.55 });
  });

  it('go on to end now while they are zoomed', () => {
    expect(zoom({ seconds: 120, end: null }, 2, now)).toEqual({ seconds: 240, end: null });
    expect(zoom({ seconds: 40, end: now - 50 }, 0.5, now)).toEqual({ seconds: 20, end: now - 60 });
    expect(zoom({ seconds: 40, end: now - 10 }, 2, now)).toEqual({ seconds: 80, end: null });
    expect(zoom({ seconds: 3600, end: null }, 2, now)).toEqual({ seconds: 3600, end: null });
  });

  it('move until an hour ago and until now', () => {
    expect(move({ seconds: 100, end: null }, -0.5, now)).toEqual({ seconds: 100, end: now - 50 });
    expect(move({ seconds: 100, end: now - 50 }, 0.5, now)).toEqual({ seconds: 100, end: null });
    expect(move({ seconds: 100, end: now - 3490 }, -1, now)).toEqual({ seconds: 100, end: now - 3500 });
  });
});

describe('times', () => {
  it('have marks at full seconds or minutes', () => {
    expect(ticks(100.5, 105.5, 6)).toEqual([101, 102, 103, 104, 105]);
    expect(ticks(0, 3600, 6)).toEqual([0, 600, 1200, 1800, 2400, 3000, 3600]);
    expect(ticks(0, 1, 6)).toHaveLength(6);
  });

  it('have as many digits as are needed', () => {
    expect(clock(1.26, 2)).toMatch(/^\d\d:\d\d:01\.2$/);
    expect(clock(1.26, 60)).toMatch(/^\d\d:\d\d:01$/);
    expect(clock(1.26, 3600)).toMatch(/^\d\d:\d\d$/);
  });

  it('are durations in words', () => {
    const said = [0.04, 3.21, 9.96, 59.6, 125].map(seconds => duration(seconds, english));
    expect(said).toEqual(['0.04 s', '3.2 s', '10 s', '1 min', '2 min 5 s']);
  });
});

describe('what is drawn', () => {
  const part = (begin: number, end: number, seconds: Record<string, number>) => ({
    begin,
    end,
    seconds,
    neededBytes: null
  });

  it('is columns with all their parts where turns are too short to see', () => {
    const turns = [
      part(10, 10.25, { running: 0.25 }),
      part(10.25, 10.75, { queued: 0.5 }),
      part(10.75, 11.25, { running: 0.5 })
    ];
    const long = part(12, 20, { running: 8 });
    expect(asDrawn([...turns, long], 10, 1)).toEqual([
      part(10, 11, { running: 0.5, queued: 0.5 }),
      part(11, 12, { running: 0.25 }),
      long
    ]);
    expect(asDrawn(turns, 10, 0.1)).toEqual(turns);
  });

  it('has a legend of what there is only', () => {
    const timeline = (...segments: unknown[]) =>
      readTimelines({ devices: [{ begin: 0, end: 9, rows: [row('ada', ...segments)] }] });
    expect(kindsIn(timeline([0, 1, { queued: 1 }, null], [1, 2, { running: 1 }, null]))).toEqual(['running', 'turn']);
    expect(kindsIn([])).toEqual([]);
  });
});
