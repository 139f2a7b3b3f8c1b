/** How to connect another machine: what to run there, and a token. */

import * as React from 'react';

import type { IMe, PageApi } from './api';
import { english as trans } from './english';

/** Where the command is typed. */
export const TERMINALS = trans.__(
  'Both lines are for a terminal of macOS or Linux and for PowerShell; where JupyterLab has the panel “Shared GPU” already, paste them there instead.'
);

interface IProps {
  me: IMe;
  api: PageApi;
  attempt: (work: () => Promise<void>, failure: string) => Promise<void>;
}

export function ConnectSection(props: IProps): React.ReactElement {
  const { me, api, attempt } = props;
  const [token, setToken] = React.useState<string | null>(null);
  const get = () =>
    attempt(async () => {
      setToken(await api.newToken());
    }, trans.__('No token could be made'));
  return (
    <section className="sk-Section sk-Connect" aria-labelledby="sk-connect-title">
      <h2 id="sk-connect-title" className="sk-Section-title">
        {trans.__('How to connect')}
      </h2>
      <p>
        {me.needsCheckout
          ? trans.__('Run this once on your own machine, in a checkout of sharedkernel.')
          : trans.__('Run this once on your own machine, in the environment that has JupyterLab.')}{' '}
        {TERMINALS}
      </p>
      <Copyable label={trans.__('Copy the command')} text={me.installCommand} />
      {me.checksFingerprint && <FingerprintNote />}
      {me.auth === 'token' && token === null && (
        <p>
          {trans.__('The command asks for your token, in the terminal.')}{' '}
          <button type="button" className="sk-Button" onClick={() => void get()}>
            {trans.__('Make another token')}
          </button>
        </p>
      )}
      {token !== null && (
        <>
          <p>{trans.__('The command asks for your token. This one is shown once; keep it to yourself:')}</p>
          <Copyable label={trans.__('Copy the token')} text={token} />
        </>
      )}
      <p>{trans.__('Then pick “Shared GPU” in JupyterLab.')}</p>
    </section>
  );
}

/** Why the command names a fingerprint. */
export function FingerprintNote(): React.ReactElement {
  return (
    <p>
      {trans.__(
        'No authority that machines know has signed this gateway’s certificate, so the command trusts this one certificate, by its fingerprint.'
      )}
    </p>
  );
}

/** Text with a button that copies it. */
export function Copyable(props: { label: string; text: string }): React.ReactElement {
  const { label, text } = props;
  const [said, setSaid] = React.useState('');
  const code = React.useRef<HTMLElement>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid(trans.__('Copied'));
    } catch {
      // Browsers have a clipboard only under TLS and on the same machine.
      if (code.current !== null) {
        window.getSelection()?.selectAllChildren(code.current);
      }
      setSaid(trans.__('Selected: press Ctrl+C'));
    }
  };
  return (
    <div className="sk-Copyable">
      <code ref={code}>{text}</code>
      <button type="button" className="sk-Button" aria-label={label} onClick={() => void copy()}>
        {said === '' ? trans.__('Copy') : said}
      </button>
      <span className="sk-Hidden" role="status">
        {said}
      </span>
    </div>
  );
}
