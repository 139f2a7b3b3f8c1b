import type { TranslationBundle } from '@jupyterlab/translation';

/** The page's words, which are English: it has no translations, and the components that it shares ask for one. */
export const english = {
  __: (text: string, ...values: unknown[]) =>
    text.replace(/%(\d)/g, (_, number: string) => String(values[Number(number) - 1]))
} as unknown as TranslationBundle;
