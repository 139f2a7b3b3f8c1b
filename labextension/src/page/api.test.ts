import { describe, expect, it } from 'vitest';

import { readClasses, xsrfToken } from './api';
import { classWords } from './classnotice';

describe('xsrfToken', () => {
  it('finds the cookie among others', () => {
    expect(xsrfToken('a=1; _xsrf=2%7Cabc; b=3')).toBe('2|abc');
    expect(xsrfToken('not_xsrf=1')).toBe('');
    expect(xsrfToken('')).toBe('');
  });
});

describe('readClasses', () => {
  const until = new Date(Date.now() + 3_600_000);
  const of = (users: Record<string, unknown>, ending = false) =>
    readClasses({ classes: { class: { until: until.toISOString(), ending, users } } })[0]!;

  it('counts who has joined', () => {
    const found = of({ ada: { joined: '2026-01-01T10:00:00+00:00' }, grace: { joined: null } });
    expect(found).toMatchObject({ members: ['ada', 'grace'], waiting: ['grace'], isEnding: false });
    expect(classWords(found)).toMatch(/^A class of 2 ends .*\d\d:\d\d; 1 joined\.$/);
    expect(classWords(of({ ada: { joined: null } }))).toMatch(/^A class of 1 ends .*; 0 joined\.$/);
    expect(classWords(of({}, true))).toBe('The class is ending.');
  });

  it('finds none in any other answer', () => {
    for (const answer of [null, {}, { classes: {} }, { classes: { a: null } }, { classes: { a: { until: 'soon' } } }]) {
      expect(readClasses(answer)).toEqual([]);
    }
  });
});
