/** What the link of an invitation opens: a code is exchanged for what connects a machine, once. */

import * as React from 'react';

import { safeText } from '../describe';
import { RefusedError } from '../limits';
import { request } from './api';
import { Copyable, FingerprintNote } from './connect';
import { english as trans } from './english';
import { momentWords } from './moment';

/** The status from which on a refusal may pass. */
const TOO_MANY_REQUESTS = 429;

interface IAdmission {
  user: string;
  until: Date;
  installCommand: string;
  needsCheckout: boolean;
  checksFingerprint: boolean;
}

/** Return the code in the page's address, and take it out of the address bar and the history. */
export function takeCode(): string {
  const code = window.location.hash.slice(1);
  if (code !== '') {
    window.history.replaceState(null, '', window.location.pathname);
  }
  return code;
}

export function Invitation(props: { code: string }): React.ReactElement {
  const [problem, setProblem] = React.useState('');
  const [isWaiting, setWaiting] = React.useState(false);
  const [isRefused, setRefused] = React.useState(false);
  const told = React.useRef<HTMLParagraphElement>(null);
  // The button that had the focus is gone; a screen reader goes on here.
  React.useEffect(() => (isRefused ? told.current?.focus() : undefined), [isRefused]);
  const [admission, setAdmission] = React.useState<IAdmission | null>(null);
  const accept = async () => {
    setWaiting(true);
    setProblem('');
    try {
      setAdmission(await admit(props.code));
    } catch (error) {
      setRefused(error instanceof RefusedError && error.status < TOO_MANY_REQUESTS);
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setWaiting(false);
  };
  if (admission !== null) {
    return <Welcome {...admission} />;
  }
  return (
    <main className="sk-SignIn sk-Invitation">
      <h1>{trans.__('Shared GPU')}</h1>
      {props.code === '' ? (
        <p>
          {trans.__('There is no invitation in this address. Open the link that you were given, or ')}
          <a href="../..">{trans.__('sign in')}</a>.
        </p>
      ) : (
        <>
          {problem === '' && (
            <p>{trans.__('You are invited to a class on a shared GPU. This invitation works once.')}</p>
          )}
          {problem !== '' && (
            <p role="alert" ref={told} tabIndex={-1}>
              {problem}
            </p>
          )}
          {isRefused ? (
            <p>
              <a href="../..">{trans.__('Sign in with a token')}</a>
            </p>
          ) : (
            <p>
              <button type="button" disabled={isWaiting} onClick={() => void accept()}>
                {trans.__('Join the class')}
              </button>
            </p>
          )}
        </>
      )}
    </main>
  );
}

function Welcome(props: IAdmission): React.ReactElement {
  const { user, until, installCommand, needsCheckout, checksFingerprint } = props;
  const heading = React.useRef<HTMLHeadingElement>(null);
  // The button that had the focus is gone; a screen reader goes on here.
  React.useEffect(() => heading.current?.focus(), []);
  return (
    <main className="sk-SignIn sk-Invitation">
      <h1 ref={heading} tabIndex={-1}>
        {trans.__('Welcome, %1', safeText(user))}
      </h1>
      <p>{trans.__('The class ends %1; your sessions and their variables end with it.', momentWords(until))}</p>
      <ol>
        <li>
          <p>
            {needsCheckout
              ? trans.__('Run this on your own machine, in a checkout of sharedkernel.')
              : trans.__('Run this on your own machine, where JupyterLab is.')}{' '}
            {trans.__('It holds your token, so keep it to yourself. It is shown only now:')}
          </p>
          <Copyable label={trans.__('Copy the command')} text={installCommand} />
          {checksFingerprint && <FingerprintNote />}
        </li>
        <li>
          <p>{trans.__('Start JupyterLab and pick “Shared GPU”.')}</p>
        </li>
      </ol>
      <p>
        <a href="../..">{trans.__('See who uses the GPU')}</a>
      </p>
    </main>
  );
}

async function admit(code: string): Promise<IAdmission> {
  const answer = (await request('POST', 'invitation/accept', { code })) as Record<string, unknown>;
  return {
    user: String(answer.user),
    until: new Date(String(answer.until)),
    installCommand: String(answer.install_command),
    needsCheckout: answer.needs_checkout === true,
    checksFingerprint: answer.checks_fingerprint === true
  };
}
