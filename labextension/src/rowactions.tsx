/** What can be done with a session now, in words: beside its row, or in a menu where there is no pointer to hover. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISessionActions } from './sessionactions';
import type { ISession } from './view';

interface IProps {
  session: ISession;
  name: string;
  actions: ISessionActions;
  trans: TranslationBundle;
}

export function RowActions(props: IProps): React.ReactElement {
  const { session, name, actions, trans } = props;
  const [isOpen, setOpen] = React.useState(false);
  const toggle = React.useRef<HTMLButtonElement>(null);
  const id = React.useId();
  const isAtRest = session.state === 'idle' || session.state === 'offloaded';
  const button = (label: string, named: string, title: string, act: (session: ISession) => Promise<void>) => (
    <button
      type="button"
      className="sk-Link"
      aria-label={named}
      title={title}
      onClick={() => {
        setOpen(false);
        void act.call(actions, session);
      }}
    >
      {label}
    </button>
  );
  return (
    <div
      className={isOpen ? 'sk-RowActions sk-mod-open' : 'sk-RowActions'}
      onBlur={event => {
        if (!event.currentTarget.contains(event.relatedTarget)) {
          setOpen(false);
        }
      }}
      onKeyDown={event => {
        if (isOpen && event.key === 'Escape') {
          setOpen(false);
          toggle.current?.focus();
        }
      }}
    >
      <button
        ref={toggle}
        type="button"
        className="sk-RowActions-toggle"
        aria-label={trans.__('Actions for %1', name)}
        aria-expanded={isOpen}
        aria-controls={id}
        onClick={() => setOpen(!isOpen)}
      >
        ⋯
      </button>
      <div id={id} className="sk-RowActions-list">
        {session.state === 'idle' &&
          button(
            trans.__('Offload'),
            trans.__('Offload %1', name),
            trans.__('Free its device memory until its next cell'),
            actions.offload
          )}
        {session.programs.length > 0 &&
          button(
            trans.__('Stop programs'),
            trans.__('Stop the programs of %1', name),
            trans.__('End the programs that it started on the device; the notebook continues'),
            actions.endPrograms
          )}
        {!isAtRest &&
          button(
            trans.__('Interrupt'),
            trans.__('Interrupt %1', name),
            trans.__('Interrupt what it runs'),
            actions.interrupt
          )}
        {session.lingering
          ? button(trans.__('End'), trans.__('End %1 for good', name), trans.__('End it for good'), actions.shutDown)
          : button(trans.__('Shut down'), trans.__('Shut down %1', name), trans.__('Shut down'), actions.shutDown)}
      </div>
    </div>
  );
}
