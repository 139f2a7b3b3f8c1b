/** What can be done with the sessions that an admin has selected, at the bottom of the page. */

import * as React from 'react';

import type { ISession } from '../view';
import type { PageActions } from './actions';
import { english as trans } from './english';
import { notebooks, peopleWords } from './selection';

interface IProps {
  sessions: readonly ISession[];
  actions: PageActions;
  onClear: () => void;
}

export function SelectionBar(props: IProps): React.ReactElement {
  const { sessions, actions, onClear } = props;
  const [progress, setProgress] = React.useState<string | null>(null);
  const idle = sessions.filter(session => session.state === 'idle');
  const run = async (work: (tell: (progress: string) => void) => Promise<boolean>) => {
    try {
      if (await work(setProgress)) {
        onClear();
      }
    } finally {
      setProgress(null);
    }
  };
  const isBusy = progress !== null;
  return (
    <section className="sk-Selection" aria-label={trans.__('Selected notebooks')}>
      <p role="status">{progress ?? trans.__('%1 selected: %2', notebooks(sessions.length), peopleWords(sessions))}</p>
      <p className="sk-Selection-buttons">
        <button
          type="button"
          className="sk-Button"
          disabled={isBusy || idle.length === 0}
          onClick={() => void run(tell => actions.offloadAll(idle, sessions.length - idle.length, tell))}
        >
          {trans.__('Offload %1 idle', idle.length)}
        </button>
        <button
          type="button"
          className="sk-Button sk-mod-warn"
          disabled={isBusy}
          onClick={() => void run(tell => actions.shutDownAll(sessions, tell))}
        >
          {trans.__('Stop %1', sessions.length)}
        </button>
        <button type="button" className="sk-Button" disabled={isBusy} onClick={onClear}>
          {trans.__('Select none')}
        </button>
      </p>
    </section>
  );
}
