import '../lib/style.js';
