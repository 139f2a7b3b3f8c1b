/** For admins: a class, with who has joined, its end, and links that replace others. */

import * as React from 'react';

import { safeText } from '../describe';
import { ofName, type PageActions } from './actions';
import type { IClass, IInvited, PageApi } from './api';
import { Copyable } from './connect';
import { english as trans } from './english';
import { momentWords } from './moment';

interface IProps {
  found: IClass;
  api: PageApi;
  actions: PageActions;
  /** Called when the class has changed; with whose link was replaced, and what has ended. */
  onChange: (user?: string, ended?: string) => void;
}

export function ClassEntry(props: IProps): React.ReactElement {
  const { found, api, actions, onChange } = props;
  const { members, waiting } = found;
  const [link, setLink] = React.useState<IInvited | null>(null);
  const who = safeText(found.name);
  const replaceLink = async (user: string) => {
    const [made] = await actions.replaceLink(found, user);
    if (made !== undefined) {
      setLink(made);
      onChange(user);
    }
  };
  const [problem, setProblem] = React.useState('');
  const end = React.useRef<HTMLInputElement>(null);
  const moveEnd = async () => {
    const until = new Date(end.current?.value ?? '').toISOString();
    setProblem('');
    await actions.attempt(() => api.moveEnd(found.name, until), trans.__('The end could not be moved'), setProblem);
    onChange();
  };
  return (
    <div className="sk-Class">
      <h3>
        {who}{' '}
        <span className="sk-Faint">
          {found.isEnding ? trans.__('is ending') : trans.__('ends %1', momentWords(found.until))}
        </span>
      </h3>
      <p>
        {trans.__('%1 of %2 joined', members.length - waiting.length, members.length)}
        {waiting.length > 0 && trans.__('; not yet: %1', waiting.map(safeText).join(', '))}
      </p>
      {!found.isEnding && (
        <form
          onSubmit={event => {
            event.preventDefault();
            void moveEnd();
          }}
        >
          <input
            key={found.until.getTime()}
            ref={end}
            className="sk-Field"
            type="datetime-local"
            required
            aria-label={trans.__('End of %1', who)}
            defaultValue={localTime(found.until)}
          />
          <button type="submit" className="sk-Button" aria-label={trans.__('Move end of %1', who)}>
            {trans.__('Move end')}
          </button>
          <span className="sk-People-told" role="alert">
            {safeText(problem)}
          </span>
        </form>
      )}
      <button
        type="button"
        className="sk-Button sk-mod-warn"
        onClick={() => void actions.endClass(found).then(ended => onChange('', ended))}
      >
        {trans.__('End the class%1', ofName(found))}
      </button>
      {!found.isEnding && (
        <details className="sk-Details">
          <summary>{trans.__('Replace a link')}</summary>
          <ul className="sk-Class-members">
            {members.map(user => (
              <li key={user}>
                {safeText(user)}{' '}
                <button
                  type="button"
                  className="sk-Link"
                  aria-label={trans.__('Replace link of %1', safeText(user))}
                  onClick={() => void replaceLink(user)}
                >
                  {trans.__('Replace link')}
                </button>
              </li>
            ))}
          </ul>
        </details>
      )}
      <div role="status">
        {link !== null && (
          <>
            <p>
              {trans.__('The new link of %1. It is shown only now, and works in one browser.', safeText(link.user))}
            </p>
            <Copyable label={trans.__('Copy the link of %1', safeText(link.user))} text={link.secret} />
          </>
        )}
      </div>
    </div>
  );
}

/** Return a moment as a field for it has it. */
export function localTime(moment: Date): string {
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
