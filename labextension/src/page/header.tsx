/** What page this is, and who looks at it. */

import * as React from 'react';

import { safeText } from '../describe';
import type { IMe } from './api';
import { english as trans } from './english';

export function Header(props: { me: IMe; onSignOut: () => void }): React.ReactElement {
  const { me, onSignOut } = props;
  return (
    <header className="sk-Header">
      <h1>{trans.__('Shared GPU')}</h1>
      <p>
        {safeText(me.user)}
        {me.admin && me.auth !== 'single' && <span className="sk-Faint"> · {trans.__('admin')}</span>}
        <button type="button" className="sk-Button" onClick={onSignOut}>
          {trans.__('Sign out')}
        </button>
      </p>
    </header>
  );
}
