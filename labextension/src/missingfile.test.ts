import { expect, test } from 'vitest';

import { missingName } from './describe';

const missing = (evalue: string, ename = 'FileNotFoundError') => missingName({ ename, evalue });

test('an error names the file that is missing', () => {
  expect(missing("[Errno 2] No such file or directory: 'data/values.csv'")).toBe('data/values.csv');
  expect(missing('[Errno 2] No such file or directory: "it\'s.csv"')).toBe("it's.csv");
  expect(missing('data.csv not found.')).toBe(null);
});

test('only below the folder of the notebook, and of no other error', () => {
  for (const path of ['/etc/passwd', '../a.csv', 'a/../../b.csv', '~/a.csv']) {
    expect(missing(`[Errno 2] No such file or directory: '${path}'`)).toBe(null);
  }
  expect(missing("'".repeat(80_000) + 'x')).toBe(null);
  expect(missing("[Errno 13] Permission denied: 'a.csv'", 'PermissionError')).toBe(null);
});
