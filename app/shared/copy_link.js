export default function ({parentElement}) {
  const button = parentElement.querySelector(".attune-copy-link");
  const said = parentElement.querySelector(".attune-copied");
  button.onclick = async () => {
    const address = window.location.href;
    try {
      await navigator.clipboard.writeText(address);
      said.textContent = `Copied: ${address}`;
    } catch {  // the browser allows it on a secure origin alone
      said.textContent = `The browser does not let it be copied. It is: ${address}`;
    }
  };
}
