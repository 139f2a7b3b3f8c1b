import { describe, expect, it } from 'vitest';

import { actWords, readAudit } from './audit';

const entry = {
  time: '2026-11-25T12:30:00.500+00:00',
  user: 'ada',
  address: '127.0.0.1',
  action: 'end session',
  session: '0123456789abcdef',
  owner: 'grace',
  status: 204
};

describe('readAudit', () => {
  it('reads entries', () => {
    const { entries, older, file } = readAudit({ entries: [entry, 3], older: true, file: '/run/audit.jsonl' });
    expect([entries.length, older, file]).toEqual([1, true, '/run/audit.jsonl']);
    expect(entries[0]).toEqual({
      time: Date.UTC(2026, 10, 25, 12, 30, 0, 500),
      user: 'ada',
      action: 'end session',
      owner: 'grace',
      session: '0123456789abcdef',
      notebook: null,
      address: '127.0.0.1',
      refusal: null,
      details: ''
    });
  });

  it('takes what is missing or wrong for unknown', () => {
    expect(readAudit(null)).toEqual({ entries: [], older: false, file: null });
    const { entries } = readAudit({ entries: [{ time: 'soon', user: null, name: 'x'.repeat(300), places: [1] }] });
    expect(entries[0]).toMatchObject({ time: null, user: null, action: '', owner: null, refusal: null });
    expect(entries[0]?.details).toBe(`name: ${'x'.repeat(194)}…`);
  });
});

describe('actWords', () => {
  const words = (fields: object) => readAudit({ entries: [{ ...entry, ...fields }] }).entries.map(actWords)[0];

  it('says what was done to whose session', () => {
    expect(words({ owner: 'ada', status: 409 })).toBe('end session · 01234567 · refused (409)');
    expect(words({ notebook: 'a/train.ipynb' })).toBe('end session · train.ipynb of grace');
    const changes = ['grace: memory 50% to 2GiB', 'group a: share 2'];
    expect(words({ action: 'change quotas', session: null, owner: null, changes })).toBe(
      'change quotas · changes: grace: memory 50% to 2GiB; group a: share 2'
    );
    expect(words({ action: 'remove entry', session: null, name: 'model\u202e' })).toMatch(/name: model\\u\{202e\}$/);
  });
});
