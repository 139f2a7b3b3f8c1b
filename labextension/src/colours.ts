/** The colours of people, as the gateway chooses them. A colour is never the only label. */

import type * as React from 'react';

import type { IStatus } from './view';

/** Return the colours of the users who have one. */
export function userColours(status: IStatus | null): Map<string, string> {
  const colours = new Map<string, string>();
  for (const { name, colour } of status?.users ?? []) {
    if (colour !== null) {
      colours.set(name, colour);
    }
  }
  return colours;
}

/** Return the style that gives an element a user's colour. */
export function colourStyle(colour: string | null | undefined): React.CSSProperties {
  return { '--sk-colour': colour } as React.CSSProperties;
}
