/** For admins: invite people to a class, or add them without an end; the classes that are here. */

import * as React from 'react';

import { safeText } from '../describe';
import { reasonOf } from '../limits';
import { Section } from '../section';
import type { PageActions } from './actions';
import type { IClass, IInvited, PageApi } from './api';
import { ClassEntry, localTime } from './classentry';
import { Copyable } from './connect';
import { english as trans } from './english';

/** Milliseconds after which a class ends unless another end is chosen. */
const DURATION = 4 * 3_600_000;

interface IProps {
  api: PageApi;
  actions: PageActions;
  classes: readonly IClass[];
  /** Called when people or classes have changed. */
  onEdit: () => void;
}

export function ClassSection(props: IProps): React.ReactElement {
  const { api, actions, classes, onEdit } = props;
  const [isEndless, setEndless] = React.useState(false);
  const [links, setLinks] = React.useState<IInvited[]>([]);
  const [tokens, setTokens] = React.useState<IInvited[]>([]);
  const [ended, setEnded] = React.useState('');
  const [problem, setProblem] = React.useState('');
  const onChange = (replaced?: string, ended = '') => {
    setEnded(ended);
    setLinks(before => before.filter(({ user }) => user !== replaced));
    onEdit();
  };
  const verb = isEndless ? trans.__('Add') : trans.__('Invite');
  const invite = async (form: HTMLFormElement) => {
    const data = new FormData(form);
    const text = (name: string) => {
      const value = data.get(name);
      return typeof value === 'string' ? value.trim() : '';
    };
    const [group, memory] = [text('group'), text('memory')];
    setProblem('');
    try {
      const users = await api.readRoster(text('users'));
      const each = isEndless ? trans.__('Each gets a token:') : trans.__('Each gets a link:');
      if (!(await actions.mayAdd(users, verb, each))) {
        return;
      }
      if (isEndless) {
        setTokens(await api.addPeople(users));
      } else if (classes.some(one => one.name === group)) {
        setLinks(await api.inviteMore(group, users));
      } else {
        const until = new Date(text('until')).toISOString();
        setLinks(await api.beginClass(group, users, until, memory === '' ? {} : { memory }));
      }
      form.reset();
      setEndless(false);
      onChange();
    } catch (error) {
      setProblem(reasonOf(error));
    }
  };
  return (
    <Section title={trans.__('Invitations')} className="sk-Classes">
      <form
        onSubmit={event => {
          event.preventDefault();
          void invite(event.currentTarget);
        }}
      >
        <label>
          {trans.__('People, by name, or a roster')}
          <textarea className="sk-Field" name="users" rows={2} required placeholder="maria niels otto" />
        </label>
        {!isEndless && (
          <>
            <label>
              {trans.__('Class')}
              <input className="sk-Field" name="group" required defaultValue="class" />
            </label>
            <label>
              {trans.__('Until')}
              <input
                className="sk-Field"
                name="until"
                type="datetime-local"
                required
                defaultValue={localTime(new Date(Date.now() + DURATION))}
              />
            </label>
            <label>
              {trans.__('Memory of each')}
              <input className="sk-Field" name="memory" placeholder={trans.__('no limit')} />
            </label>
          </>
        )}
        <label className="sk-Classes-choice">
          <input
            className="sk-Checkbox"
            type="checkbox"
            checked={isEndless}
            onChange={event => setEndless(event.target.checked)}
          />{' '}
          {trans.__('No end')}
        </label>
        <button type="submit" className="sk-Button">
          {verb}
        </button>
      </form>
      <p className="sk-Hint">
        {isEndless
          ? trans.__('Each gets a token that is good until it is removed, and is in no class.')
          : trans.__('A class that is here already keeps its end and its limits.')}
      </p>
      <div role="alert">{problem !== '' && <p className="sk-Notice sk-mod-problem">{safeText(problem)}</p>}</div>
      {tokens.length > 0 && (
        <>
          <p>{trans.__('Send each their token, and the address of this page. Tokens are shown only now.')}</p>
          <Copyable label={trans.__('Copy all tokens')} text={lines(tokens)} />
        </>
      )}
      {links.length > 0 && (
        <>
          <p>{trans.__('Send each their link. Links are shown only now; each works in one browser.')}</p>
          <Copyable label={trans.__('Copy all links')} text={lines(links)} />
        </>
      )}
      <div role="status">{safeText(ended)}</div>
      {classes.map(one => (
        <ClassEntry key={one.name} found={one} api={api} actions={actions} onChange={onChange} />
      ))}
    </Section>
  );
}

function lines(invited: readonly IInvited[]): string {
  return invited.map(({ user, secret }) => `${user} ${secret}`).join('\n');
}
