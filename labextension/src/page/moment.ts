/** Moments in words. */

import { english as trans } from './english';

/** Return when something is: a time of today, or a day and a time. */
export function momentWords(moment: Date): string {
  const isToday = moment.toDateString() === new Date().toDateString();
  const time = moment.toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23' // as the commands have it
  });
  return isToday ? trans.__('at %1', time) : trans.__('on %1 at %2', moment.toLocaleDateString(), time);
}
