// Builds the gateway's own page into the Python package: one script and one style sheet, without anything from JupyterLab.
// And makes JupyterLab's style sheet a small script, without the builder's own loaders and their licences.

import { readFile, writeFile } from 'node:fs/promises';

import { rspack } from '@rspack/core';
import { build } from 'esbuild';

const place = '../sharedkernel/gateway/page/static';

// The chart draws lines on linear scales and writes its own ticks: uPlot goes without the rest.
const unused = [
  ...['rangeLog', 'rangeAsinh', 'logAxisSplits', 'asinhAxisSplits', 'log10AxisValsFilt', 'log2AxisValsFilt'],
  ...['fmtDate', 'timeAxisVal', 'timeAxisVals', 'timeSeriesVal', '_monotoneCubic', 'stepped', 'bars', 'findColWidth'],
  ...['addSeries', 'delSeries', 'addBand', 'delBand', 'clipBandLine']
];
const body = new RegExp(`^(\\t?)function (${unused.join('|')})\\([^)]*\\) \\{[^]*?^\\1\\}`, 'gm');

const linesOnly = {
  name: 'lines-only',
  setup(builder) {
    builder.onLoad({ filter: /uPlot\.esm\.js$/ }, async ({ path }) => {
      const whole = await readFile(path, 'utf8');
      const lines = whole
        .replace(body, 'function $2() {}')
        .replace(/_timeAxisStamps = \[[^]*?^\t\];/m, '_timeAxisStamps = [];')
        .replace(/^\s*(\(paths\.(stepped|bars|spline) *=|uPlot\.\w+ *=).*$/gm, '');
      return { contents: lines, loader: 'js' };
    });
  }
};

await build({
  entryPoints: { page: 'src/page/main.tsx' },
  outdir: place,
  bundle: true,
  minify: true,
  format: 'iife',
  target: 'es2022',
  // React's own renderer would be half of the page.
  alias: { react: 'preact/compat', '@lumino/signaling': './src/page/signal.ts' },
  define: { 'process.env.NODE_ENV': '"production"' },
  legalComments: 'inline',
  plugins: [linesOnly],
  logLevel: 'warning'
});

// What JupyterLab's own builder minifies with makes the script 5 % smaller than esbuild alone.
const script = `${place}/page.js`;
const { code } = await rspack.experiments.swc.minify(await readFile(script, 'utf8'), {
  compress: { passes: 4 },
  mangle: true
});
await writeFile(script, code);

// The panel, the status bar and the forms of JupyterLab are not on the page.
const names = 'AskForRoom|ConnectForm|Panel|Quotas|StatusItem-button|View';
const rule = new RegExp(`(?<=[{}])([^{},]*\\.sk-(${names})(?![\\w-])[^{},]*,?)+\\{[^}]*\\}`, 'g');
const styles = `${place}/page.css`;
await writeFile(styles, (await readFile(styles, 'utf8')).replace(rule, ''));

const { outputFiles } = await build({
  entryPoints: ['style/base.css'],
  outdir: 'lib',
  minify: true,
  write: false,
  logLevel: 'warning'
});
const sheet = JSON.stringify(outputFiles[0].text);
await writeFile(
  'lib/style.js',
  `const style = document.createElement('style');\nstyle.textContent = ${sheet};\ndocument.head.append(style);\n`
);
