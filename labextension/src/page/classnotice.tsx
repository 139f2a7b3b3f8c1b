/** For admins: the classes that are here, until when, and how many have joined. */

import * as React from 'react';

import { safeText } from '../describe';
import type { RefusedError } from '../limits';
import type { IClass, PageApi } from './api';
import { english as trans } from './english';
import { momentWords } from './moment';

/** Milliseconds between two looks at who has joined. */
const PERIOD = 3000;

/** Return the classes, read again every few seconds while an admin can see them; `edits`: how often this page changed them. */
export function useClasses(api: PageApi, isWanted: boolean, edits: number): readonly IClass[] {
  const [classes, setClasses] = React.useState<readonly IClass[]>([]);
  React.useEffect(() => {
    let isCurrent = isWanted;
    const look = async () => {
      if (isCurrent && !document.hidden) {
        // A gateway of another kind has no classes, and is asked no more; what else is wrong, the figures show.
        const found = await api.classes().catch((error: Partial<RefusedError>) => {
          isCurrent &&= error.status !== 403;
          return null;
        });
        if (isCurrent && found !== null) {
          setClasses(found);
        }
      }
    };
    void look();
    const timer = setInterval(() => void look(), PERIOD);
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [api, isWanted, edits]);
  return classes;
}

export function ClassNotice(props: { classes: readonly IClass[] }): React.ReactElement {
  const { classes } = props;
  return (
    <>
      {classes.map(entry => (
        <p key={entry.name} className="sk-Notice sk-mod-demand">
          {classes.length > 1 && `${safeText(entry.name)}: `}
          {classWords(entry)}
        </p>
      ))}
    </>
  );
}

/** Return what there is to say of a class. */
export function classWords(found: IClass): string {
  if (found.isEnding) {
    return trans.__('The class is ending.');
  }
  const until = momentWords(found.until);
  const [members, joined] = [found.members.length, found.members.length - found.waiting.length];
  return trans.__('A class of %1 ends %2; %3 joined.', members, until, joined);
}
