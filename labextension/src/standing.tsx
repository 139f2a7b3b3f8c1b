/** What holds for everything that is shown: a gateway that drains, long waits, and when the figures were those of now. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { momentOf } from './format';
import type { DeviceModel } from './model';
import type { INames } from './names';
import { drainNotice } from './notice';
import { longWaitWords } from './words';

interface IProps {
  model: DeviceModel;
  trans: TranslationBundle;
}

export function DrainNotice(props: IProps): React.ReactElement | null {
  const { model, trans } = props;
  const { status } = model.view;
  // What a gateway that is away did last is no news.
  const words = status === null || !model.isLive ? null : drainNotice(status, trans);
  return words === null ? null : <p className="sk-Notice">{words}</p>;
}

export function WaitNotice(props: INames & { model: DeviceModel }): React.ReactElement | null {
  const { model, own, units, trans } = props;
  const { status } = model.view;
  const words = status === null || !model.isLive ? null : longWaitWords(status, own, units, trans);
  return words === null ? null : <p className="sk-Notice">{words}</p>;
}

export function AsOf(props: IProps): React.ReactElement | null {
  const { model, trans } = props;
  const { asOf, view } = model;
  return asOf === null || view.status === null ? null : (
    <p className="sk-AsOf">{trans.__('Figures as of %1', momentOf(asOf))}</p>
  );
}
