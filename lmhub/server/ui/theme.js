// Applies the chosen colours before the page is drawn; without a choice they are the system's, and change with it.
{
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const system = systemIsDark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = localStorage.getItem("lmhub.theme") ?? system;
  };
  systemIsDark.addEventListener("change", apply);
  apply();
}
