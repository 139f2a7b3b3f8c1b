/** What page this is, its parts, and who looks at it. */

import * as React from 'react';

import { safeText } from '../describe';
import type { IMe } from './api';
import { english as trans } from './english';
import type { Tab } from './tabs';

interface IProps {
  me: IMe;
  tabs: readonly Tab[];
  /** Null while nobody knows. */
  tab: Tab | null;
  onSignOut: () => void;
}

export function Header(props: IProps): React.ReactElement {
  const { me, tabs, tab, onSignOut } = props;
  const names: Record<Tab, string> = {
    now: trans.__('Now'),
    people: trans.__('People'),
    timeline: trans.__('Timeline'),
    audit: trans.__('Audit'),
    connect: trans.__('Connect')
  };
  return (
    <header className="sk-Header">
      <h1>{trans.__('Shared GPU')}</h1>
      <nav className="sk-Tabs" aria-label={trans.__('Parts of this page')}>
        {tabs.map(each => (
          <a key={each} href={`#${each}`} aria-current={each === tab ? 'page' : undefined}>
            {names[each]}
          </a>
        ))}
      </nav>
      <p className="sk-Header-user">
        {safeText(me.user)}
        {me.admin && me.auth !== 'single' && <span className="sk-Faint"> · {trans.__('admin')}</span>}
        <button type="button" className="sk-Button" onClick={onSignOut}>
          {trans.__('Sign out')}
        </button>
      </p>
    </header>
  );
}
