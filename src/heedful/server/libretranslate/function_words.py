"""Frequent short words of languages, and their greetings, which tell the languages apart in any text."""

from __future__ import annotations

FUNCTION_WORDS = {
    "bg": "и в на да за се от не с е че по са като ще това си но той тя до те или",
    "ca": "de la i el que en a les els per un una amb del és es no al més com són va ha han",
    "cs": "a v se na je že s z o do to i jako za by ale pro tak po jeho od který jsou byl muž žena",
    "da": "og i det er en at på til af for den de med der som ikke har et han var fra mand kvinde",
    "de": (
        "hallo guten tag morgen abend danke bitte ja nein der die und in den von zu das mit sich des auf "
        "für ist im dem nicht ein eine als auch es an werden aus er hat dass sie nach wird bei einer um am "
        "sind noch wie einem über einen so zum war haben nur oder aber vor zur mann frau"
    ),
    "el": "και το να της του η ο την στο για με από που τα είναι στη δεν μια τον οι ένα θα σε τη",
    "en": (
        "hello good morning evening thank you please yes no my me the of and to in a is that it he was for "
        "on are with as his they at be this from have or by one had not but what all were when we there can "
        "an your which their said if do will each about how up out them then she man woman"
    ),
    "es": (
        "hola buenos días gracias sí de la que el en y a los se del las un por con no una su para es al lo "
        "como más o pero sus le ha me si sin sobre este ya entre cuando todo esta ser son dos también fue "
        "hombre mujer"
    ),
    "et": "ja on ei et ta see mis kui oli ka oma ning aga või kes selle nii välja mehe üks",
    "fi": ("ja on ei että se hän oli ovat joka mutta kun niin kuin myös sen tai jos ole mukaan nyt vain mies nainen"),
    "fr": (
        "bonjour bonsoir merci oui non salut bien je vous nous de la le et les des en un du une que est "
        "pour qui dans a par plus pas au sur ne se ce il sont avec son elle aux ou mais on leur cette était "
        "ses homme femme deux"
    ),
    "hr": "i u je se na da su za od s a koji o što kao će nije ali iz ili te do po bi sve muškarac žena",
    "hu": "a az és hogy nem is egy volt meg ez van de csak el ha már mint még azt férfi nő aki egyik",
    "id": (
        "yang dan di dengan untuk ini dari dalam tidak akan pada itu juga saya adalah ke karena ada seorang pria wanita"
    ),
    "it": (
        "ciao buongiorno grazie sì di e il la che in un a per è una sono con non si da come le dei nel del "
        "alla più al ha i gli delle anche lo su della ma uomo donna due"
    ),
    "lt": "ir yra į kad su iš bet kaip jis tai ar buvo apie po tik dar nuo už prie vyras moteris",
    "lv": "un ir no uz ar ka par kas bet arī tas vai kā pēc lai tikai viņš vīrietis sieviete",
    "nl": (
        "hallo goede morgen dank ja nee de van het een en in is dat op te zijn met voor niet aan er om ook "
        "als dan maar bij nog naar heeft door uit over was worden man vrouw twee"
    ),
    "no": "og i det er en på til av for at med de som den ikke har et han var fra om seg mann kvinne",
    "pl": "i w na z się do nie że jest to o jak po co tak za od ale przez dla ma być są tym mężczyzna kobieta",
    "pt": (
        "olá bom dia obrigado sim de a o que e do da em um para com não uma os no se na por mais as dos "
        "como mas ao ele das seu sua ou quando muito nos já também é são homem mulher dois"
    ),
    "ro": "de și în a la cu pe nu că o un este să din se care mai pentru sunt ca au fost dar ce bărbat femeie",
    "ru": ("и в не на я что он с как а то все она так его но да ты к у же вы за бы по от о из ему для мужчина женщина"),
    "sk": "a v sa na je že s z o do to aj ako za by ale pre tak po jeho od ktorý sú bol muž žena",
    "sl": "in je v se na da so za z pa ki tudi ne kot bi od ali s po pri še moški ženska",
    "sr": "и је у се на да су за од са који о као није али из или до по би све",
    "sv": (
        "hej tack ja nej god morgon och i att det som en på är av för med till den har de inte om ett han "
        "men var sig från man kvinna"
    ),
    "tr": "ve bir bu da de için ile çok ne gibi daha olarak var kadar sonra olan o değil en adam kadın",
    "uk": "і в не на що я з він до як у та це за є по його від але вона для чоловік жінка",
    "vi": "và của là có không cho các được trong một người những với này đã để khi đó đến",
}
