/** The parts of the page, each with an address of its own. */

import * as React from 'react';

import type { IStatus } from '../view';

export const TABS = ['now', 'people', 'timeline', 'audit', 'connect'] as const;

export type Tab = (typeof TABS)[number];

/** Return the tab that the address names; null: none that there is. */
export function useTab(tabs: readonly Tab[]): Tab | null {
  const [name, setName] = React.useState(window.location.hash.slice(1));
  React.useEffect(() => {
    const onChange = () => setName(window.location.hash.slice(1));
    window.addEventListener('hashchange', onChange);
    return () => window.removeEventListener('hashchange', onChange);
  }, []);
  return tabs.find(tab => tab === name) ?? null;
}

/** Whether nothing has ever run: then people want to know how to connect. */
export function isUntouched(status: IStatus): boolean {
  return status.sessions.length === 0 && status.users.every(user => user.attained_service_seconds === 0);
}
