import '../lib/base.css';
