/** For admins: invite people to a class, see who has joined, and end it. */

import * as React from 'react';

import { safeText } from '../describe';
import { Section } from '../section';
import type { PageActions } from './actions';
import type { IClass, IInvited, PageApi } from './api';
import { Copyable } from './connect';
import { english as trans } from './english';
import { momentWords } from './moment';

/** Hours after which a class ends unless another end is chosen. */
const HOURS = 4;

interface IProps {
  api: PageApi;
  actions: PageActions;
}

export function ClassSection(props: IProps): React.ReactElement {
  const { api, actions } = props;
  const [classes, setClasses] = React.useState<IClass[]>([]);
  const [invited, setInvited] = React.useState<IInvited[]>([]);
  const [problem, setProblem] = React.useState('');
  const read = React.useCallback(async () => setClasses(await api.classes().catch(() => [])), [api]);
  React.useEffect(() => void read(), [read]);
  const invite = async (form: HTMLFormElement) => {
    const data = new FormData(form);
    const text = (name: string) => {
      const value = data.get(name);
      return typeof value === 'string' ? value.trim() : '';
    };
    const [group, memory] = [text('group'), text('memory')];
    const users = text('users').split(/[\s,;]+/);
    const until = new Date(text('until')).toISOString();
    setProblem('');
    try {
      const isHere = classes.some(one => one.name === group);
      setInvited(
        isHere
          ? await api.inviteMore(group, users)
          : await api.beginClass(group, users, until, memory === '' ? {} : { memory })
      );
      form.reset();
      await read();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const links = invited.map(({ user, link }) => `${user} ${link}`).join('\n');
  return (
    <Section title={trans.__('Invitations')} className="sk-Classes">
      <form
        onSubmit={event => {
          event.preventDefault();
          void invite(event.currentTarget);
        }}
      >
        <label>
          {trans.__('People, by name')}
          <textarea className="sk-Field" name="users" rows={2} required placeholder="maria niels otto" />
        </label>
        <label>
          {trans.__('Class')}
          <input className="sk-Field" name="group" required defaultValue="class" />
        </label>
        <label>
          {trans.__('Until')}
          <input className="sk-Field" name="until" type="datetime-local" required defaultValue={localTime(HOURS)} />
        </label>
        <label>
          {trans.__('Memory of each')}
          <input className="sk-Field" name="memory" placeholder={trans.__('no limit')} />
        </label>
        <button type="submit" className="sk-Button">
          {trans.__('Invite')}
        </button>
      </form>
      <p className="sk-Hint">{trans.__('A class that is here already keeps its end and its limits.')}</p>
      <div role="alert">{problem !== '' && <p className="sk-Notice sk-mod-problem">{safeText(problem)}</p>}</div>
      {invited.length > 0 && (
        <>
          <p>{trans.__('Send each their link. Links are shown only now; each works in one browser.')}</p>
          <Copyable label={trans.__('Copy all links')} text={links} />
        </>
      )}
      {classes.map(one => (
        <div key={one.name} className="sk-Class">
          <h3>
            {safeText(one.name)}{' '}
            <span className="sk-Faint">
              {one.isEnding ? trans.__('is ending') : trans.__('ends %1', momentWords(one.until))}
            </span>
          </h3>
          <p>
            {trans.__('%1 of %2 joined', one.joined, one.members)}
            {one.waiting.length > 0 && trans.__('; not yet: %1', one.waiting.map(safeText).join(', '))}
          </p>
          <button type="button" className="sk-Button sk-mod-warn" onClick={() => void actions.endClass(one).then(read)}>
            {trans.__('End class %1', safeText(one.name))}
          </button>
        </div>
      ))}
    </Section>
  );
}

/** Return the time in a number of hours, as a field for it has it. */
function localTime(hours: number): string {
  const moment = new Date(Date.now() + hours * 3_600_000);
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
