import { describe, expect, it } from 'vitest';

import { xsrfToken } from './api';

describe('xsrfToken', () => {
  it('finds the cookie among others', () => {
    expect(xsrfToken('a=1; _xsrf=2%7Cabc; b=3')).toBe('2|abc');
    expect(xsrfToken('not_xsrf=1')).toBe('');
    expect(xsrfToken('')).toBe('');
  });
});
