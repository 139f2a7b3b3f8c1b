/** Switches notifications of the browser on and off. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { askToNotify, notifyPermission, NotifyPermission } from './notifier';

interface IProps {
  /** Whether the user has switched them on, here or elsewhere. */
  isOn: boolean;
  /** Keep what the user chose. */
  onChange: (isOn: boolean) => void;
  trans: TranslationBundle;
}

export function NotifySwitch(props: IProps): React.ReactElement {
  const { isOn, onChange, trans } = props;
  const [permission, setPermission] = React.useState<NotifyPermission>(notifyPermission);
  const change = async (wanted: boolean) => {
    if (!wanted) {
      onChange(false);
      return;
    }
    const answer = await askToNotify();
    setPermission(answer);
    if (answer === 'granted') {
      onChange(true);
    }
  };
  return (
    <div className="sk-Notify">
      <label>
        <input
          className="sk-Checkbox"
          type="checkbox"
          checked={isOn && permission === 'granted'}
          disabled={permission === 'unsupported'}
          onChange={event => void change(event.target.checked)}
        />{' '}
        {trans.__('Notify me of my turn and of the end of long cells')}
      </label>
      <div aria-live="polite" className="sk-Hint">
        {permission === 'denied' && trans.__('Your browser blocks notifications of this page; allow them there first.')}
        {permission === 'unsupported' && trans.__('Your browser shows notifications of pages under https only.')}
      </div>
    </div>
  );
}
