import { describe, expect, it } from 'vitest';

import { session, status, view } from '../testdocuments';
import { ISession, parseView } from '../view';
import { forEach, peopleWords, selectedOf, withSessions } from './selection';

const sessions: ISession[] =
  parseView(
    view({
      status: status(
        ...['ada', 'grace', 'ada', 'linus', 'mary', 'tim'].map((user, number) =>
          session({ id: `s${number}`, user, notebook: `n${number}.ipynb`, lingering: number === 2 })
        )
      )
    })
  ).status?.sessions ?? [];

describe('selectedOf', () => {
  it('leaves out what is gone or was shut down', () => {
    const selected = withSessions(new Set(['gone']), sessions.slice(0, 3), true);
    expect(selectedOf(sessions, selected).map(each => each.id)).toEqual(['s0', 's1']);
    expect(selectedOf(sessions, withSessions(selected, sessions.slice(0, 1), false)).map(each => each.id)).toEqual([
      's1'
    ]);
  });
});

describe('forEach', () => {
  it('goes on after a failure, a few at a time', async () => {
    let running = 0;
    let most = 0;
    const counts: number[] = [];
    const failures = await forEach(
      sessions,
      async each => {
        running += 1;
        most = Math.max(most, running);
        await Promise.resolve();
        running -= 1;
        if (each.user === 'ada') {
          throw new Error('It is not idle.');
        }
      },
      count => counts.push(count),
      () => false
    );
    expect(failures.map(each => each.session.id)).toEqual(['s0', 's2']);
    expect(most).toBe(4);
    expect(counts).toEqual([1, 2, 3, 4, 5, 6]);
  });

  it('ends at an error that stands in the way of all', async () => {
    const tried: string[] = [];
    const work = async (each: ISession) => {
      tried.push(each.id);
      return Promise.reject(new Error('Please sign in again.'));
    };
    await expect(
      forEach(
        sessions,
        work,
        () => undefined,
        () => true
      )
    ).rejects.toThrow('sign in');
    expect(tried.length).toBe(4);
  });
});

describe('words', () => {
  it('name a few', () => {
    expect(peopleWords(sessions.slice(0, 1))).toBe('ada');
    expect(peopleWords(sessions.slice(0, 3))).toBe('ada and grace');
    expect(peopleWords(sessions)).toBe('ada, grace, linus and 2 more');
  });
});
