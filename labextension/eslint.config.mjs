import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig(
  { ignores: ['dist', 'lib', 'node_modules'] },
  js.configs.recommended,
  tseslint.configs.strict,
  {
    files: ['src/**/*.{ts,tsx}'],
    extends: [tseslint.configs.recommendedTypeChecked],
    languageOptions: {
      parserOptions: { project: './tsconfig.lint.json', tsconfigRootDir: import.meta.dirname }
    },
    rules: {
      '@typescript-eslint/no-explicit-any': 'error',
      eqeqeq: 'error',
      // Lumino's signals take a method and the object that it belongs to.
      '@typescript-eslint/unbound-method': 'off'
    }
  },
  {
    files: ['src/**/*.test.ts'],
    rules: {
      // A test that finds nothing where it asserts fails, as it should.
      '@typescript-eslint/no-non-null-assertion': 'off'
    }
  }
);
