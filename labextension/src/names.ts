import type { TranslationBundle } from '@jupyterlab/translation';

import type { Units } from './format';

/** What every part of the panel needs to put things into words. */
export interface INames {
  units: Units;
  trans: TranslationBundle;
  /** The user's name; null while not known. */
  own: string | null;
}
