import { describe, expect, it } from 'vitest';

import { ordinal } from './describe';
import { english, session, status, view } from './testdocuments';
import { parseView } from './view';
import { deviceTitle, level, pendingDemand, roomWords, turnsOf, waitWords } from './words';

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

describe('waitWords', () => {
  const words = (fields: Record<string, unknown>, own = 'ada') =>
    waitWords(read(session(fields)).sessions[0]!, own, 'binary', english);

  it('says what a session needs', () => {
    const needs = { state: 'waiting', waiting_for: 'memory', needed_bytes: 1100 * MIB, free_bytes: 600 * MIB };
    expect(words(needs)).toBe('Needs 1.1 GiB, 600 MiB free');
  });

  it('says why where the amount is not known', () => {
    expect(words({ state: 'waiting', waiting_for: 'memory', queue_position: 2 })).toBe('Waiting for memory');
    expect(words({ state: 'offloaded', waiting_for: 'quota' })).toBe("Waiting for its user's quota");
  });

  it('tells people their own place', () => {
    const place = { state: 'queued', queue_position: 2, waiting_for: 'lane' };
    expect(words(place)).toBe('You are 2nd');
    expect(words(place, 'grace')).toBe('2nd');
    expect(words({ state: 'queued' })).toBe('In line');
  });

  it('says which host it is for where there are several', () => {
    const place = { state: 'queued', queue_position: 2, waiting_for: 'lane', host: 'h2' };
    expect(words(place)).toBe('You are 2nd on h2');
    const needs = { state: 'waiting', waiting_for: 'memory', needed_bytes: MIB, free_bytes: 0, host: 'h2' };
    expect(words(needs)).toBe('Needs 1.0 MiB, 0 B free on h2');
    expect(words({ state: 'waiting', waiting_for: 'memory', host: 'h2' })).toBe('Waiting for memory on h2');
  });
});

describe('ordinal', () => {
  it.each([
    [1, '1st'],
    [2, '2nd'],
    [3, '3rd'],
    [4, '4th'],
    [11, '11th'],
    [12, '12th'],
    [21, '21st'],
    [111, '111th']
  ])('%i', (position, words) => {
    expect(ordinal(position, english)).toBe(words);
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

describe('pendingDemand', () => {
  it('is one sentence', () => {
    const large = { state: 'waiting', waiting_for: 'memory', needed_bytes: 2048 * MIB, free_bytes: 0 };
    const queued = { state: 'queued', queue_position: 1, waiting_for: 'lane' };
    const told = (...sessions: unknown[]) => pendingDemand(read(...sessions), 'binary', english);
    expect(told(session())).toBe(null);
    expect(told(session({ ...large, memory_wait_seconds: 40.2 }))).toBe(
      '1 cell waits for 2.0 GiB of memory; the next frees in about 40 s.'
    );
    expect(told(session(large), session({ ...large, id: 'b' }))).toBe('2 cells wait for 4.0 GiB of memory.');
    expect(told(session({ ...large, needed_bytes: null }), session({ ...queued, id: 'b' }))).toBe(
      '1 cell waits for memory, and 1 cell waits for its turn.'
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
