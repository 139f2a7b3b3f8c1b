import { describe, expect, it } from 'vitest';

import { lingeringWords, programsWords, safeText, sessionName, sessionState, tone } from './describe';
import { deviceFigures, sessionFigures } from './figures';
import { formatBytes, percent, sentences, valueOf } from './format';
import { english, session, status, view } from './testdocuments';
import { ISession, parseView } from './view';

function read(fields: Record<string, unknown>): ISession {
  const [first] = parseView(view({ status: status(session(fields)) })).status!.sessions;
  return first!;
}

describe('programsWords', () => {
  it('says what each program has, and why one takes no turns', () => {
    const program = { name: 'train.py', processes: 2, bytes: 3.1 * 2 ** 30, note: null };
    const words = (programs: unknown[]) => programsWords(read({ programs }), 'binary', english);
    expect(words([])).toBeNull();
    expect(words([program])).toBe('train.py, 2 processes, 3.1 GiB');
    const other = { ...program, name: 'serve', processes: 1, note: 'it uses two devices' };
    expect(words([program, other])).toBe(
      'train.py, 2 processes, 3.1 GiB; serve, 1 process, 3.1 GiB (takes no turns: it uses two devices)'
    );
  });
});

describe('sessionState', () => {
  it.each([
    [{ state: 'idle' }, 'idle', 'idle'],
    [{ state: 'ready' }, 'running without the device', 'busy'],
    [{ state: 'running' }, 'running', 'running'],
    [{ state: 'running', threads: 3 }, 'computing in 3 threads', 'running'],
    [{ state: 'preempting' }, 'making room', 'running'],
    [{ state: 'offloading' }, 'making room', 'waiting'],
    [{ state: 'idle', idle_seconds: 459 }, 'idle 7 min', 'idle'],
    [{ state: 'idle', idle_seconds: 400_000 }, 'idle 4 d', 'idle'],
    [{ state: 'queued', queue_position: 1, waiting_for: 'lane' }, '1st in line', 'waiting'],
    [{ state: 'waiting', queue_position: 3, waiting_for: 'memory' }, '3rd in line, waiting for memory', 'waiting'],
    [{ state: 'waiting', waiting_for: 'quota' }, "waiting for its user's quota", 'waiting'],
    [{ state: 'restoring', waiting_for: 'restore' }, 'waiting to be restored', 'waiting'],
    [{ state: 'restoring' }, 'being restored', 'waiting'],
    [{ state: 'offloaded' }, 'offloaded', 'offloaded'],
    [{ state: 'offloaded', lingering: true, lingering_seconds: 500 }, 'shut down', 'offloaded'],
    [{ state: 'idle', lingering: true }, 'shut down', 'idle'],
    [{ state: 'idle', lingering: true, restarted: true }, 'kept after a restart', 'idle'],
    [{ state: 'running', lingering: true }, 'running', 'running'],
    [{ state: 'dreaming' }, 'dreaming', 'idle'],
    [{ state: 'queued', queue_position: 1, waiting_for: 'rain' }, '1st in line, waiting for its turn', 'waiting']
  ])('puts %j into words', (fields, words, shown) => {
    expect(sessionState(read(fields), english)).toBe(words);
    expect(tone(read(fields))).toBe(shown);
  });
});

describe('figures', () => {
  it.each([
    [{ time_left_seconds: 41.6 }, ['about 42 s left']],
    [{ time_left_seconds: 99.9 }, ['about 2 min left']],
    [{ time_left_seconds: 7000 }, ['about 2 h left']],
    [{ time_left_seconds: null, remaining_seconds: 41, remaining_from: 'declared' }, []],
    [{}, []]
  ])('of a session tell what is known, no guess: %j', (fields, words) => {
    expect(sentences(sessionFigures, 'line', read(fields), 'binary', english)).toEqual(words);
  });

  it.each([
    [{}, []],
    [
      { utilisation: 0.83, temperature_celsius: 61, power_watts: 212.4, power_limit_watts: 350 },
      ['83 % busy', '61 °C', '212 of 350 W']
    ],
    [{ power_watts: 50 }, ['50 W']]
  ])('of a device are those that there are: %j', (fields, words) => {
    const document = status();
    document.device = { ...(document.device as object), ...fields };
    const { device } = parseView(view({ status: document })).status!;
    expect(sentences(deviceFigures, 'line', device, 'binary', english)).toEqual(words);
  });

  it('have memory in use: what stays, what the iteration needs now, and PyTorch itself', () => {
    expect(valueOf(sessionFigures.memory, read({}))).toBe(5632);
    expect(sentences(sessionFigures, 'beside', read({}), 'binary', english)).toEqual(['5.5 KiB']);
    expect(sentences(sessionFigures, 'details', read({}), 'binary', english)).toEqual([
      '1.0 KiB persistent',
      '512 B ephemeral',
      '4.0 KiB framework'
    ]);
  });
});

describe('lingeringWords', () => {
  it.each([
    [{ lingering: false, lingering_seconds: null }, null],
    [
      { lingering: true, lingering_seconds: 541 },
      'Shut down; stays for 10 min, %shared attach in its notebook brings it back'
    ],
    [
      { lingering: true, still_has: ['port 8000', 'thread worker'] },
      'Shut down; %shared attach in its notebook brings it back; it still has port 8000, thread worker, until it is ended'
    ],
    [
      { lingering: true, lingering_seconds: 541, restarted: true },
      'Kept after a restart; stays for 10 min, %shared attach in its notebook brings it back'
    ]
  ])('tell how to have it back: %j', (fields, words) => {
    expect(lingeringWords(read(fields), english)).toBe(words);
  });
});

describe('names', () => {
  it('are those of the notebook, else of the session', () => {
    expect(sessionName(read({ notebook: 'C:\\work\\a b.ipynb' }))).toBe('a b.ipynb');
    expect(sessionName(read({ notebook: null }))).toBe('01234567');
    expect(sessionName(read({ notebook: '/' }))).toBe('01234567');
  });

  it('show what would hide or turn the line around', () => {
    expect(safeText('a\u202eb\u0007c\u2028')).toBe('a\\u{202e}b\\u{0007}c\\u{2028}');
    expect(safeText('Müller 😀')).toBe('Müller 😀');
  });
});

describe('memory', () => {
  it('is short in either units', () => {
    const sizes = [0, 1023, 1024 ** 2 - 1, 1.5 * 1024 ** 3, 3 * 1024 ** 5].map(bytes => formatBytes(bytes, 'binary'));
    expect(sizes).toEqual(['0 B', '1023 B', '1.0 MiB', '1.5 GiB', '3072 TiB']);
    expect([1024, 2_500_000_000].map(bytes => formatBytes(bytes, 'decimal'))).toEqual(['1.0 kB', '2.5 GB']);
  });

  it('is never more than the whole bar', () => {
    expect([percent(1, 4), percent(9, 4), percent(1, 0), percent(-1, 4)]).toEqual([25, 100, 0, 0]);
  });
});
