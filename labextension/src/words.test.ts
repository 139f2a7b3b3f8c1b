import { describe, expect, it } from 'vitest';

import { ordinal } from './describe';
import { english, session, status, view } from './testdocuments';
import { parseView } from './view';
import { deviceTitle, level, longWaitWords, needWords, roomWords, turnsOf, turnWords } from './words';

const MIB = 1024 ** 2;

const read = (...sessions: unknown[]) => parseView(view({ status: status(...sessions) })).status!;
const device = (fields: Record<string, unknown>) => {
  const document = status();
  document.device = { ...(document.device as object), ...fields };
  return parseView(view({ status: document })).status!.device;
};

describe('turnsOf', () => {
  it('sorts sessions by what they do', () => {
    const turns = turnsOf(
      read(
        session({ id: 'third', state: 'queued', queue_position: 3, waiting_for: 'lane' }),
        session({ id: 'first', state: 'queued', queue_position: 1, waiting_for: 'lane' }),
        session({ id: 'now', state: 'running' }),
        session({ id: 'large', state: 'waiting', queue_position: 2, waiting_for: 'memory' }),
        session({ id: 'idle' }),
        session({ id: 'ended', lingering: true })
      ).sessions
    );
    expect(turns.running.map(one => one.id)).toEqual(['now']);
    expect(turns.next.map(one => one.id)).toEqual(['first', 'third']);
    expect(turns.waiting.map(one => one.id)).toEqual(['large']);
  });
});

describe('needWords', () => {
  const words = (fields: Record<string, unknown>) => needWords(read(session(fields)).sessions[0]!, 'binary', english);

  it('say what a session needs, where that is known', () => {
    const needs = { state: 'waiting', waiting_for: 'memory', needed_bytes: 1100 * MIB, free_bytes: 600 * MIB };
    expect(words(needs)).toBe('Needs 1.1 GiB, 600 MiB free');
    expect(words({ state: 'waiting', waiting_for: 'memory' })).toBe(null);
    expect(words({ ...needs, state: 'queued', waiting_for: 'lane' })).toBe(null);
  });
});

describe('turnWords', () => {
  it('count who computes and who waits', () => {
    const words = (...sessions: unknown[]) => turnWords(read(...sessions).sessions, english);
    expect(words(session())).toBe('idle');
    const queued = session({ id: 'b', state: 'queued', queue_position: 1, waiting_for: 'lane' });
    expect(words(queued)).toBe('idle · 1 waiting');
    expect(words(session({ state: 'running' }), queued, session({ id: 'c', state: 'waiting' }))).toBe(
      '1 computing · 2 waiting'
    );
  });
});

describe('ordinal', () => {
  it('ends as people say it', () => {
    const words = [1, 2, 3, 4, 11, 12, 21, 111].map(position => ordinal(position, english));
    expect(words.join()).toBe('1st,2nd,3rd,4th,11th,12th,21st,111th');
  });
});

describe('roomWords', () => {
  const waiting = { id: 'w', state: 'waiting', waiting_for: 'memory', room_from: 'm', memory_wait_seconds: 26.4 };
  const words = (maker: Record<string, unknown>, wait: Record<string, unknown> = {}) => {
    const { sessions } = read(session({ ...waiting, ...wait }), session({ id: 'm', ...maker }));
    return roomWords(sessions[0]!, sessions, 'ada', english);
  };

  it('name whose notebook makes room, and when', () => {
    expect(words({ user: 'grace' })).toBe('grace’s idle notebook makes room in about 26 s');
    expect(words({ user: 'grace', state: 'queued' })).toBe('grace’s notebook makes room in about 26 s');
    expect(words({ notebook: '/x/b.ipynb' })).toBe('Your idle notebook b.ipynb makes room in about 26 s');
    expect(words({ user: 'grace' }, { memory_wait_seconds: null })).toBe('grace’s idle notebook makes room soon');
    expect(words({}, { room_from: null })).toBe(null);
  });
});

describe('longWaitWords', () => {
  it('name the notebook that has waited longest, once it is worth a word', () => {
    const large = { state: 'waiting', waiting_for: 'memory', needed_bytes: 2048 * MIB, free_bytes: 0 };
    const told = (...minutes: number[]) => {
      const found = read(...minutes.map((_, place) => session({ ...large, id: `${place}`, user: `user-${place}` })));
      const sessions = found.sessions.map((one, place) => ({ ...one, waited_minutes: minutes[place]! }));
      return longWaitWords({ ...found, sessions }, 'user-1', 'binary', english);
    };
    expect(told(4)).toBe(null);
    expect(told(5)).toBe('user-0 (train.ipynb) has waited for 5 min. Needs 2.0 GiB, 0 B free.');
    expect(told(5, 9, 6)).toBe(
      'Your notebook train.ipynb has waited for 9 min. Needs 2.0 GiB, 0 B free. 2 more have waited for over 5 min.'
    );
  });
});

describe('level', () => {
  it('warns at 80 and at 95 percent', () => {
    expect([79, 80, 94, 95, 120].map(part => level(part, 100))).toEqual(['normal', 'high', 'high', 'full', 'full']);
    expect(level(1, 0)).toBe('normal');
  });
});

describe('devices', () => {
  it('are called what people call them', () => {
    expect(deviceTitle(device({ name: 'host (2 x x86_64)' }), english)).toBe('CPU (2 cores), demo device');
    expect(deviceTitle(device({ name: 'host' }), english)).toBe('CPU, demo device');
    expect(deviceTitle(device({ name: 'h1/host', description: 'host (2 x x86_64)' }), english)).toBe(
      'CPU (2 cores), demo device · h1/host'
    );
    expect(deviceTitle(device({ name: 'lab' }), english)).toBe('lab');
    expect(deviceTitle(device({ name: 'cuda:0', kind: 'cuda' }), english)).toBe('cuda:0');
  });
});
