/** The form that connects this Jupyter server to a gateway, unless its environment decides which one it has. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { Api } from './api';
import { safeText } from './describe';
import { reasonOf, RefusedError } from './limits';

interface IProps {
  api: Api;
  /** What is wrong with the gateway that is kept; null: nothing that needs to be said. */
  message: string | null;
  /** Called once another gateway is kept. */
  onConnected: () => void;
  trans: TranslationBundle;
}

/** What was refused, beside which field. */
interface IProblem {
  text: string;
  field: string;
}

/** What can be typed. */
type Typed = Record<'url' | 'token' | 'fingerprint', string>;

/** Return what a command from a gateway's page holds; null: the text is no such command. */
export function readCommand(text: string): Typed | null {
  const option = (name: string) => new RegExp(`--${name}[ =]+(\\S+)`).exec(text)?.[1] ?? '';
  const url = option('gateway-url');
  return url === '' ? null : { url, token: option('token').replace(/^-$/, ''), fingerprint: option('fingerprint') };
}

export function ConnectForm(props: IProps): React.ReactElement | null {
  const { api, message, onConnected, trans } = props;
  const id = React.useId();
  const [kept, setKept] = React.useState<{ url: string; decided: string | null } | null>(null);
  const [typed, setTyped] = React.useState<Typed>({ url: '', token: '', fingerprint: '' });
  const [isCompared, setCompared] = React.useState(false);
  const [problem, setProblem] = React.useState<IProblem | null>(null);
  const [state, setState] = React.useState<'typing' | 'connecting' | 'connected'>('typing');
  React.useEffect(() => {
    api.gateway().then(
      found => {
        setKept(found);
        setTyped(before => (before.url === '' ? { ...before, url: found.url } : before));
      },
      (error: unknown) => setProblem({ text: reasonOf(error), field: '' })
    );
  }, [api]);
  const type = (field: keyof Typed, text: string) => {
    const command = readCommand(text);
    if (command !== null) {
      setTyped({ ...command, token: command.token || typed.token });
      // Who copied the command has its fingerprint from the gateway's page.
      setCompared(command.fingerprint !== '');
    } else {
      setTyped(field === 'url' ? { ...typed, url: text, fingerprint: '' } : { ...typed, [field]: text });
    }
  };
  const connect = async () => {
    setState('connecting');
    setProblem(null);
    try {
      await api.connect({ ...typed, fingerprint: isCompared ? typed.fingerprint : '' });
      setState('connected');
      onConnected();
    } catch (error) {
      const answer = (error instanceof RefusedError ? error.answer : null) as Partial<Record<string, unknown>> | null;
      const field = typeof answer?.field === 'string' ? answer.field : '';
      setProblem({ text: reasonOf(error), field });
      if (typeof answer?.fingerprint === 'string' && answer.fingerprint !== '') {
        setTyped({ ...typed, fingerprint: answer.fingerprint });
        setCompared(false);
      }
      setState('typing');
    }
  };
  if (kept !== null && kept.decided !== null) {
    return (
      <div className="sk-ConnectForm">
        {message !== null && <p className="sk-Notice">{safeText(message)}</p>}
        <p>{safeText(kept.decided)}</p>
      </div>
    );
  }
  const wrong = (field: string) =>
    problem?.field === field && (
      <p id={`${id}-problem`} className="sk-Warning" role="alert">
        {safeText(problem.text)}
      </p>
    );
  const described = (field: string) => (problem?.field === field ? `${id}-problem` : undefined);
  return (
    <form
      className="sk-ConnectForm"
      aria-label={trans.__('Connect to a gateway')}
      onSubmit={event => {
        event.preventDefault();
        void connect();
      }}
    >
      <p>
        {trans.__(
          'Connect this JupyterLab to a shared GPU: paste the command from the gateway’s page, or type its address and your token.'
        )}
      </p>
      <label>
        {trans.__('Address or command')}
        <input
          className="sk-Field"
          type="text"
          required
          autoComplete="off"
          spellCheck={false}
          placeholder="https://gpu.example.org"
          aria-invalid={problem?.field === 'url'}
          aria-describedby={described('url')}
          value={typed.url}
          onChange={event => type('url', event.target.value)}
        />
      </label>
      {wrong('url')}
      <label>
        {trans.__('Your token')}
        <input
          className="sk-Field"
          type="password"
          required
          autoComplete="off"
          aria-invalid={problem?.field === 'token'}
          aria-describedby={described('token')}
          value={typed.token}
          onChange={event => type('token', event.target.value)}
        />
      </label>
      {wrong('token')}
      {typed.fingerprint !== '' && (
        <>
          <p>
            {trans.__('Fingerprint of its certificate:')} <code>{safeText(typed.fingerprint)}</code>
          </p>
          {wrong('fingerprint')}
          <label>
            <input
              className="sk-Checkbox"
              type="checkbox"
              required
              aria-describedby={described('fingerprint')}
              checked={isCompared}
              onChange={event => setCompared(event.target.checked)}
            />{' '}
            {trans.__('The gateway’s page or admin names the same')}
          </label>
        </>
      )}
      {wrong('')}
      <p aria-live="polite">
        <button type="submit" className="sk-Button" disabled={state !== 'typing'}>
          {trans.__('Connect')}
        </button>{' '}
        {state === 'connecting' && trans.__('Connecting…')}
        {state === 'connected' && trans.__('Connected. Pick “Shared GPU” in the launcher.')}
      </p>
    </form>
  );
}
