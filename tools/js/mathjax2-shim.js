// The widget viewer asks MathJax 2 to typeset its labels; the pages carry MathJax 3, so answer in its name.
document.addEventListener('DOMContentLoaded', () => {
  const mathjax = window.MathJax;
  if (mathjax && !mathjax.Hub) {
    mathjax.Hub = { Queue: ([, , element]) => mathjax.typesetPromise && mathjax.typesetPromise([element]) };
  }
});
