import { describe, expect, it } from 'vitest';

import { session, status, view } from '../testdocuments';
import { parseView } from '../view';
import { peopleOf, pick } from './people';

const LIMITS = { memory: '1GiB', share: 1, sessions: null, byHand: [] };

function people() {
  const document = status(
    session({ id: 'a', idle_seconds: 600 }),
    session({ id: 'b', idle_seconds: 30 }),
    session({ id: 'c', user: 'grace', idle_seconds: 3600 })
  );
  document.users = [
    { name: 'ada', quota_bytes: 8192, persistent_bytes: 1024, ephemeral_bytes: 512, quota_used_bytes: 1536 },
    { name: 'grace', persistent_bytes: 4096 }
  ];
  return peopleOf(
    parseView(view({ status: document })).status!,
    new Map([
      ['student10', LIMITS],
      ['student9', LIMITS]
    ])
  );
}

describe('peopleOf', () => {
  it('has who uses the device, and who may', () => {
    const [student, , ada] = people();
    expect(student).toMatchObject({ name: 'student10', sessions: 0, idleMinutes: null, limits: LIMITS });
    expect(ada).toMatchObject({
      name: 'ada',
      usedBytes: 1536,
      chargedBytes: 1536,
      quotaBytes: 8192,
      sessions: 2,
      idleMinutes: 0
    });
  });
});

describe('pick', () => {
  const names = (search: string, order: 'name' | 'memory' | 'activity') =>
    pick(people(), search, order).map(person => person.name);

  it('sorts', () => {
    expect(names('', 'name')).toEqual(['ada', 'grace', 'student9', 'student10']);
    expect(names('', 'memory')).toEqual(['grace', 'ada', 'student9', 'student10']);
    expect(names('', 'activity')).toEqual(['ada', 'grace', 'student9', 'student10']);
  });
});
