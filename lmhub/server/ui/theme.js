// Applies the chosen colours before the page is drawn; without a choice the system's preference rules (see style.css).
document.documentElement.dataset.theme = localStorage.getItem("lmhub.theme") ?? "auto";
